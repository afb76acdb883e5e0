#!/usr/bin/env bash
# Runs all tests on a fresh Debian or Ubuntu that has only a Rust toolchain:
#
#   tests/run.sh [ARGUMENT OF cargo test...]         e.g. tests/run.sh --test it signals
#
# 1. installs the packages whose programs are missing (apt-get, by sudo when not root; no daemon is started by that),
# 2. puts redis-py and python-redis-lock, foreign clients that the tests lock against, PyYAML, and moto, a server of
#    DynamoDB and S3, into target/, and by tests/servers.sh servers of other versions, whose exact versions it prints,
# 3. runs the tests with every store; neither `scale::*`, which loads the whole machine, nor `random_faults::*` and
#    `fuzzed_replies::*`, which take minutes: tests/scale.sh and tests/faults.sh run them,
# 4. without arguments, builds dlock with `file:` alone, and runs the tests of what depends on the stores of a build.
#
# The tests start their own servers on free ports and stop them. Read from the environment:
#   DLOCK_TEST_THREADS   most tests at a time (default: 20 per CPU: most of a test is waiting, and those beyond
#                        3 per CPU begin only while the CPUs have time left)
#   DLOCK_TEST_PYTHON    a python3 that can `import redis, redis_lock, yaml, moto`; set here for the tests. A test that does
#                        not find it set uses target/python/bin/python, and then python3 from PATH
#   DLOCK_TEST_CONSUL    the program of another version of Consul than 1.8
#   TMPDIR               where the servers have their data; by default a directory in memory, if 8 GiB are free there
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'run.sh: %s\n' "$*"; }
die() { printf 'run.sh: %s\n' "$*" >&2; exit 1; }
has() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ]; }

command -v cargo >/dev/null || die "cargo is missing: install Rust, see https://rustup.rs"

# --- arguments --------------------------------------------------------------------------------------------------------
is_all=$([ "$#" = 0 ] && echo yes || echo no)
# Arguments after `--` are passed to the test binaries, and so are the filters.
for_cargo=() for_tests=()
while [ "$#" != 0 ]; do
    if [ "$1" = -- ]; then
        shift
        for_tests=("$@")
        break
    fi
    for_cargo+=("$1")
    shift
done
for_tests+=(--skip scale:: --skip random_faults:: --skip fuzzed_replies::)

# The tests are compiled while packages and servers are fetched, unless the compiler is missing too. What fails here is
# reported when they are run.
compiling='' policy=/usr/sbin/policy-rc.d has_policy=no kept='' root=() in_memory=''
compile() {
    cargo test --locked --no-run "${for_cargo[@]}" >/dev/null 2>&1 </dev/null &
    compiling=$!
}
at_exit() {
    [ -z "$compiling" ] || kill "$compiling" 2>/dev/null || true
    [ "$has_policy" = no ] || restore_policy
    [ -z "$in_memory" ] || rm -rf "$in_memory"
}
trap at_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
! has cc || compile

# --- packages ---------------------------------------------------------------------------------------------------------
missing=()
want() { # program, package: remembers the package when the program is not there
    has "$1" || missing+=("$2")
}
want cc gcc               # Rust links with it, and TLS compiles with it
want redis-server redis-server
want redis-cli redis-tools
want etcd etcd-server
want etcdctl etcd-client
# Its package has no program in PATH, either.
[ -x "$(echo /usr/lib/postgresql/*/bin/postgres | tr ' ' '\n' | tail -n 1)" ] || missing+=(postgresql)
want psql postgresql-client
want pgbouncer pgbouncer
want mariadbd mariadb-server   # and Galera
want mariadb mariadb-client
# Its package has no program in PATH, and depends on a Java virtual machine.
[ -e /usr/share/java/zookeeper.jar ] && has java || missing+=(zookeeper)
want memcached memcached
want flock util-linux     # also unshare, setsid, setpriv, prlimit, script on older releases
want script bsdutils
want less less
want ps procps
want strace strace
want ip iproute2
want nft nftables
want cron cron
want python3 python3
want sqlite3 sqlite3
want curl curl
want promtool prometheus
want zsh zsh
want fish fish
want elvish elvish
want man man-db
want groff groff-base
want mandoc mandoc
want shellcheck shellcheck
# tests/servers.sh takes packages of Debian, also on other distributions.
[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || missing+=(debian-archive-keyring)
# A distribution's python3 may lack venv or its pip. Either way of installing redis-py is sufficient.
python3 -c 'import ensurepip, venv' 2>/dev/null || python3 -m pip --version >/dev/null 2>&1 ||
    missing+=(python3-venv python3-pip)

install_packages() {
    if [ "$(id -u)" != 0 ]; then
        has sudo || die "missing packages: ${missing[*]}. Not root and no sudo: apt-get install ${missing[*]}"
        root=(sudo)
    fi
    has apt-get || die "missing packages: ${missing[*]}. No apt-get here: install what they contain"
    say "installing ${missing[*]}"
    # Debian starts a server when it is installed; a policy-rc.d that exits 101 prevents it. Afterwards the one
    # that existed before is restored.
    if [ -e "$policy" ]; then
        kept=$policy.before-dlock-tests
        "${root[@]}" mv "$policy" "$kept"
    fi
    restore_policy() {
        has_policy=no
        "${root[@]}" rm -f "$policy"
        [ -z "$kept" ] || "${root[@]}" mv "$kept" "$policy"
    }
    has_policy=yes
    printf '#!/bin/sh\nexit 101\n' | "${root[@]}" tee "$policy" >/dev/null
    "${root[@]}" chmod 755 "$policy"
    export DEBIAN_FRONTEND=noninteractive
    "${root[@]}" apt-get update -qq </dev/null || say "apt-get update failed; trying with the lists that are here"
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install --yes -qq --no-install-recommends "${missing[@]}" </dev/null
    restore_policy
}
[ "${#missing[@]}" = 0 ] || install_packages
[ -n "$compiling" ] || compile
PATH=$PATH:/usr/sbin:/sbin

# --- redis-py, python-redis-lock, PyYAML and moto ---------------------------------------------------------------------
python=${DLOCK_TEST_PYTHON:-target/python/bin/python}
if ! "$python" -c 'import redis, redis_lock, yaml, moto, flask' 2>/dev/null; then
    [ -z "${DLOCK_TEST_PYTHON:-}" ] || die "DLOCK_TEST_PYTHON=$python cannot import redis, redis_lock, yaml, moto and flask: pip install redis python-redis-lock pyyaml 'moto[server]'"
    say "installing redis-py, python-redis-lock, PyYAML and moto into target/python"
    rm -rf target/python
    mkdir -p target
    if python3 -c 'import ensurepip, venv' 2>/dev/null; then
        python3 -m venv target/python
        target/python/bin/python -m pip install --quiet --disable-pip-version-check 'redis>=5' python-redis-lock pyyaml 'moto[server]>=5'
    else
        # No venv in this python: the package in a directory, and a python3 that looks there.
        mkdir -p target/python/bin
        PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --disable-pip-version-check \
            --target target/python/lib 'redis>=5' python-redis-lock pyyaml 'moto[server]>=5'
        printf '#!/bin/sh\nPYTHONPATH=%s exec python3 "$@"\n' "$PWD/target/python/lib" \
            >target/python/bin/python
        chmod 755 target/python/bin/python
    fi
    "$python" -c 'import redis, redis_lock, yaml, moto, flask' || die "redis-py, python-redis-lock, PyYAML and moto were installed but cannot be imported"
fi
case $python in
/*) ;;
*/*) python=$PWD/$python ;;
esac
export DLOCK_TEST_PYTHON=$python

# --- servers of other versions ----------------------------------------------------------------------------------------
tests/servers.sh

# --- the tests --------------------------------------------------------------------------------------------------------
threads=${DLOCK_TEST_THREADS:-$(($(nproc) * 20))}
export RUST_TEST_THREADS=$threads
# The servers write thousands of small files, and sync them. tests/faults.sh and tests/scale.sh do that on a disk.
room() { # GiB that are free in /dev/shm, and GiB of free memory
    df --output=avail --block-size=1G /dev/shm 2>/dev/null | tail -n 1
    awk '$1 == "MemAvailable:" {print int($2 / 1048576)}' /proc/meminfo
}
if [ -z "${TMPDIR:-}" ] && room | awk 'NR == 1 || $1 < least {least = $1} END {exit NR != 2 || least < 8}' &&
    in_memory=$(mktemp -d /dev/shm/dlock-tests.XXXXXX); then
    # The programs of the tests, and servers with users of their own, are in it.
    chmod 1777 "$in_memory"
    printf '#!/bin/sh\n' >"$in_memory/program"
    chmod 755 "$in_memory/program"
    if "$in_memory/program" 2>/dev/null; then export TMPDIR=$in_memory; fi
    rm "$in_memory/program"
fi
# Under nohup, or in the background of a script, signals are ignored from the start, which the tests would inherit.
usual_signals=()
! env --default-signal true 2>/dev/null || usual_signals=(env --default-signal)
run_tests() { # arguments of cargo test
    "${usual_signals[@]}" cargo test --locked --no-fail-fast "$@" "${for_cargo[@]}" -- "${for_tests[@]}" </dev/null
}
wait "$compiling" || true
compiling=''
status=0
say "every store, at most $threads tests at a time"
run_tests || status=$?
if [ "$is_all" = yes ]; then
    say "file: alone (--no-default-features)"
    run_tests --no-default-features --test features || status=$?
fi
[ "$status" = 0 ] || die "there are failures, see above"
