#!/usr/bin/env bash
# Checks that the tests detect defects. Each patch in tests/mutants/ plants one defect in a scratch copy of
# the sources; the test that its first line names must pass without it and fail with it.
#
#   tests/mutants.sh                 all of them, some minutes
#   tests/mutants.sh 03 release      those whose file name contains one of the words
#
# The first line of a patch: `Must break: TEST NAME` as `cargo test --test it` prints it, or `Must break: models TEST
# NAME` for a test of `cargo test --test models`. Then why; then the diff.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
repository=$PWD

patches=()
for patch in tests/mutants/*.patch; do
    [ "$#" != 0 ] || patches+=("$patch")
    for word in "$@"; do
        case ${patch##*/} in *"$word"*) patches+=("$patch") && break ;; esac
    done
done
[ "${#patches[@]}" != 0 ] || { echo "mutants.sh: no patch is called so" >&2; exit 1; }

# Built in a separate target directory that is kept: a fresh one would compile every dependency again.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$repository/target}/mutants
export DLOCK_TEST_PYTHON=${DLOCK_TEST_PYTHON:-$repository/target/python/bin/python}
scratch=$(mktemp -d "${TMPDIR:-/tmp}/dlock-mutants.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
git ls-files --cached --others --exclude-standard -z |
    tar --create --null --ignore-failed-read --files-from=- | tar --extract --directory="$scratch"
cd "$scratch"

# The probe is the command that the tests run under dlock.
build() {
    cargo build --locked --quiet --example probe >build.log 2>&1 &&
        cargo test --locked --quiet --test it --test models --no-run >>build.log 2>&1
}
# 0: it ran and passed; 1: it ran and failed; 2: there is no such test.
run() {
    local target=it
    [ "${1#models }" = "$1" ] || target=models
    timeout 300 cargo test --locked --quiet --test "$target" -- --exact "${1#models }" >test.log 2>&1 </dev/null || return 1
    grep -q '^test result: ok. 1 passed' test.log || return 2
}

dead=() broken=()
build || { cat build.log; echo "mutants.sh: the sources do not build" >&2; exit 1; }
for patch in "${patches[@]}"; do
    test=$(sed -n '1s/^Must break: //p' "$repository/$patch")
    run "$test" || {
        tail -40 test.log
        echo "mutants.sh: ${patch##*/}: without the defect, '$test' does not pass or does not exist" >&2
        exit 1
    }
done
echo "without a defect: all ${#patches[@]} named tests pass"
for patch in "${patches[@]}"; do
    name=${patch##*/}
    test=$(sed -n '1s/^Must break: //p' "$repository/$patch")
    if ! patch --strip=1 --forward --batch --quiet --no-backup-if-mismatch <"$repository/$patch" >patch.log 2>&1; then
        cat patch.log
        echo "mutants.sh: $name does not apply any more: make it anew" >&2
        exit 1
    fi
    if ! build; then
        broken+=("$name")
        echo "$name: does not compile"
        tail -20 build.log
    else
        status=0
        run "$test" || status=$?
        if [ "$status" = 1 ]; then echo "$name: noticed by $test"; else
            dead+=("$name")
            echo "$name: NOT NOTICED by $test"
        fi
    fi
    patch --strip=1 --reverse --batch --quiet --no-backup-if-mismatch <"$repository/$patch" >/dev/null
done
[ "${#dead[@]}" = 0 ] && [ "${#broken[@]}" = 0 ] || {
    echo "mutants.sh: ${#dead[@]} defects were not noticed, ${#broken[@]} do not compile" >&2
    exit 1
}
echo "mutants.sh: all ${#patches[@]} defects were noticed"
