#!/usr/bin/env bash
# Checks that the tests detect defects. Each patch in tests/mutants/ plants one defect in a scratch copy of
# the sources; the test that its first line names must pass without it and fail with it.
#
#   tests/mutants.sh                 all of them, most of an hour
#   tests/mutants.sh 03 release      those whose file name contains one of the words
#   tests/mutants.sh --part 2/4      every fourth of them, from the second one on
#   tests/mutants.sh --part today/4  a quarter of them, another one each day, as .github/workflows/mutants.yml
#   tests/mutants.sh --names         none: says which patches name a test that does not exist
#
# The first line of a patch: `Must break: TEST NAME` as `cargo test --test it` prints it, or `Must break: models TEST
# NAME` for a test of `cargo test --test models`. Then why; then the diff.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
repository=$PWD

say() { printf 'mutants.sh: %s\n' "$*"; }
die() { printf 'mutants.sh: %s\n' "$*" >&2; exit 1; }

# --- which ones -------------------------------------------------------------------------------------------------------
part=1 parts=1 only_names=no
case ${1:-} in
--part)
    [[ ${2:-} =~ ^([0-9]+|today)/([1-9][0-9]*)$ ]] || die "--part takes a number and a count, such as 2/4 or today/4"
    part=${BASH_REMATCH[1]} parts=${BASH_REMATCH[2]}
    [ "$part" != today ] || part=$(($(date -u +%s) / 86400 % parts + 1))
    [ "$part" -ge 1 ] && [ "$part" -le "$parts" ] || die "there is no part $part of $parts"
    shift 2
    ;;
--names)
    only_names=yes
    shift
    ;;
esac
patches=() number=0
for patch in tests/mutants/*.patch; do
    number=$((number + 1))
    [ $(((number - part) % parts)) = 0 ] || continue
    [ "$#" != 0 ] || patches+=("$patch")
    for word in "$@"; do
        case ${patch##*/} in *"$word"*) patches+=("$patch") && break ;; esac
    done
done
[ "${#patches[@]}" != 0 ] || die "no patch is called so"
[ "$parts" = 1 ] || say "part $part of $parts: ${#patches[@]} of $number defects"

# --- the scratch copy -------------------------------------------------------------------------------------------------
# Built in a separate target directory that is kept, and that begins with the dependencies as they were built here.
own=${CARGO_TARGET_DIR:-$repository/target}
export CARGO_TARGET_DIR=$own/mutants
if [ ! -e "$CARGO_TARGET_DIR" ] && [ -e "$own/debug/deps" ]; then
    mkdir -p "$CARGO_TARGET_DIR/debug/deps"
    cp -a "$own/debug/build" "$own/debug/.fingerprint" "$CARGO_TARGET_DIR/debug/"
    find "$own/debug/deps" -maxdepth 1 -type f \( -name 'lib*' -o -name '*.d' \) ! -name 'libdlock-*' \
        -exec cp -a --target-directory="$CARGO_TARGET_DIR/debug/deps" {} +
fi
export DLOCK_TEST_PYTHON=${DLOCK_TEST_PYTHON:-$repository/target/python/bin/python}
export DLOCK_TEST_SERVERS=${DLOCK_TEST_SERVERS:-$repository/target/servers}
scratch=$(mktemp -d "${TMPDIR:-/tmp}/dlock-mutants.XXXXXX")
clean=''
trap 'rm -rf "$scratch" "$clean"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
git ls-files --cached --others --exclude-standard -z |
    tar --create --null --ignore-failed-read --files-from=- | tar --extract --directory="$scratch"
cd "$scratch"

# --- building and running ---------------------------------------------------------------------------------------------
# Under nohup, or in the background of a script, signals are ignored from the start, which the tests would inherit.
usual_signals=()
! env --default-signal true 2>/dev/null || usual_signals=(env --default-signal)
named() { sed -n '1s/^Must break: //p' "$repository/$1"; } # patch
target_of() { [ "${1#models }" = "$1" ] && echo it || echo models; } # test
# The program of a test target, after building it.
build_tests() { # target
    cargo test --locked --test "$1" --no-run 2>build.log >/dev/null || return 1
    sed -n "s,^ *Executable .*(\(.*/$1-[0-9a-f]*\))$,\1,p" build.log | sed "s,^[^/],$scratch/&," >"program.$1"
    [ -s "program.$1" ]
}
build_binary() { cargo build --locked --bin dlock >build.log 2>&1; }
# 0: it ran and passed; 1: it ran and failed; 2: there is no such test.
run() { # test, program
    "${usual_signals[@]}" timeout 300 "$2" --exact "${1#models }" >test.log 2>&1 </dev/null || return 1
    grep -q '^test result: ok. 1 passed' test.log || return 2
}

# The probe is the command that the tests run under dlock.
{ cargo build --locked --example probe >build.log 2>&1 && build_tests models && build_tests it && build_binary; } || {
    cat build.log
    die "the sources do not build"
}
missing=0
for target in it models; do
    "$(cat "program.$target")" --list 2>/dev/null | sed -n 's/: test$//p' >"tests.$target"
done
for patch in "${patches[@]}"; do
    test=$(named "$patch")
    grep -qxF -e "${test#models }" "tests.$(target_of "$test")" || {
        say "${patch##*/}: there is no test '$test'" >&2
        missing=$((missing + 1))
    }
done
[ "$missing" = 0 ] || die "$missing patches name no test"
if [ "$only_names" = yes ]; then
    say "all ${#patches[@]} patches name a test"
    exit
fi
for patch in "${patches[@]}"; do
    test=$(named "$patch")
    run "$test" "$(cat "program.$(target_of "$test")")" || {
        tail -40 test.log
        die "${patch##*/}: without the defect, '$test' does not pass"
    }
done
say "without a defect, all ${#patches[@]} named tests pass"

# Most tests run the binary, so that the tests without the defect do for them, and need not be built for each defect.
# 0: it is noticed; 1: it is not; 2: it does not compile.
is_noticed() { # test
    local target status=0
    target=$(target_of "$1")
    if [ "$target" = it ]; then
        build_binary || return 2
        run "$1" "$clean" || status=$?
        [ "$status" != 1 ] || return 0
    fi
    build_tests "$target" || return 2
    run "$1" "$(cat "program.$target")" || status=$?
    [ "$status" = 1 ]
}
# It has to remain where it finds the probe.
clean=$(cat program.it).clean
cp "$(cat program.it)" "$clean"
dead=() broken=()
for patch in "${patches[@]}"; do
    name=${patch##*/}
    test=$(named "$patch")
    if ! patch --strip=1 --forward --batch --quiet --no-backup-if-mismatch <"$repository/$patch" >patch.log 2>&1; then
        cat patch.log
        die "$name does not apply any more: make it anew"
    fi
    status=0
    is_noticed "$test" || status=$?
    case $status in
    0) say "$name: noticed by $test" ;;
    2) broken+=("$name") && say "$name: does not compile" && tail -20 build.log ;;
    *) dead+=("$name") && say "$name: NOT NOTICED by $test" ;;
    esac
    patch --strip=1 --reverse --batch --quiet --no-backup-if-mismatch <"$repository/$patch" >/dev/null
done
[ "${#dead[@]}" = 0 ] && [ "${#broken[@]}" = 0 ] ||
    die "${#dead[@]} defects were not noticed, ${#broken[@]} do not compile"
say "all ${#patches[@]} defects were noticed"
