#!/usr/bin/env bash
# Tests dlock against the libraries that applications lock with: redis-py, python-redis-lock, node-redlock
# with ioredis, redsync and Redisson on separate redis-servers; etcdctl 3.4 and 3.6, etcd's Go client and jetcd on
# etcd 3.4 and 3.6; Curator and kazoo on ZooKeeper; psql on PostgreSQL; GET_LOCK on MariaDB; ShedLock on both;
# pymemcache on Memcached; `consul lock` of Consul 1.20; AWS's lock client on moto; client-go's leader election on
# kube-apiserver 1.32. Each excludes the other, both ways, and each wakes the other.
#
#   tests/interop.sh [WORD...]           only the scenarios whose title contains one of the words
#   DLOCK=/usr/bin/dlock tests/interop.sh
#   DLOCK_INTEROP_CONSUL=1 tests/interop.sh        with `consul lock` of Consul 1.20, which takes 5 minutes to build
#   DLOCK_INTEROP_KUBERNETES=1 tests/interop.sh    with kube-apiserver, which takes 10 minutes to build on two processors
#
# Without DLOCK it builds one (cargo build). The libraries come through pip, npm, go and mvn, as these are configured, in
# the versions that tests/interop/clients/ names, into target/interop and nowhere else; what is there is not fetched again.
# Takes two minutes, the first time six: etcd 3.6 is built from its source. Consul and kube-apiserver are left out unless
# they are asked for.
#
# shellcheck disable=SC2317  # the functions are called by name
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() { echo "interop.sh: $*" >&2; exit 1; }
missing=()
need() { command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] || missing+=("$1 ($2)"); }
need redis-server "apt-get install redis-server"
need etcd "apt-get install etcd-server"
need etcdctl "apt-get install etcd-client"
[ -e /usr/share/java/zookeeper.jar ] || missing+=("/usr/share/java/zookeeper.jar (apt-get install zookeeper)")
need memcached "apt-get install memcached"
compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null || need initdb "apt-get install postgresql"
need mariadbd "apt-get install mariadb-server"
need flock "apt-get install util-linux"
need python3 "apt-get install python3"
need node "Node.js 18 or later: apt-get install nodejs, or https://nodejs.org"
need npm "apt-get install npm, or https://nodejs.org"
need go "Go 1.26 or later, or 1.21 that may fetch it: https://go.dev/dl"
need java "JDK 17 or later: apt-get install default-jdk-headless"
need javac "JDK 17 or later: apt-get install default-jdk-headless"
need mvn "apt-get install maven"
! command -v python3 >/dev/null || python3 -c 'import ensurepip, venv' 2>/dev/null ||
    missing+=("venv of python3 (apt-get install python3-venv)")
export DLOCK_TEST_PYTHON=${DLOCK_TEST_PYTHON:-$PWD/target/python/bin/python}
"$DLOCK_TEST_PYTHON" -c 'import moto, flask' 2>/dev/null ||
    missing+=("moto (tests/run.sh installs it, or pip install 'moto[server]' for DLOCK_TEST_PYTHON)")
[ "${DLOCK_INTEROP_KUBERNETES:-}" != 1 ] || need openssl "apt-get install openssl"
[ -n "${DLOCK:-}" ] || command -v cargo >/dev/null || missing+=("cargo (https://rustup.rs), or DLOCK")
[ "${#missing[@]}" = 0 ] || die "missing: $(printf '%s; ' "${missing[@]}")"
PATH=$PATH:/usr/sbin:/sbin

clients=$PWD/tests/interop/clients
built=$PWD/target/interop
mkdir -p "$built"
exec 9>"$built/.lock"
flock 9

# Whether these files are unchanged since NAME was last done.
stamp() { cat "$@" | sha256sum; }
is_done() { [ "$(cat "$built/$1.done" 2>/dev/null)" = "$(stamp "${@:2}")" ]; }
done_with() { stamp "${@:2}" >"$built/$1.done"; }

prepare_python() {
    local from=("$clients/python/requirements.txt")
    ! is_done python "${from[@]}" || [ ! -x "$built/python/bin/python" ] || return 0
    rm -rf "$built/python"
    python3 -m venv "$built/python"
    "$built/python/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
        --require-hashes --requirement "${from[0]}"
    done_with python "${from[@]}"
}

prepare_node() {
    local from=("$clients/node/package.json" "$clients/node/package-lock.json" "$clients/node/.npmrc")
    mkdir -p "$built/node"
    cp "$clients/node/client.js" "${from[@]}" "$built/node"
    ! is_done node "${from[@]}" || [ ! -d "$built/node/node_modules" ] || return 0
    (cd "$built/node" && npm ci --silent --no-audit --no-fund --no-update-notifier --ignore-scripts --cache "$built/npm")
    done_with node "${from[@]}"
}

use_own_go_cache() {
    export GOMODCACHE=$built/go/mod GOCACHE=$built/go/build GOPATH=$built/go
    export GOFLAGS="-modcacherw -mod=readonly -buildvcs=false"
    export GOTELEMETRY=off
}

# Go tracks changes itself.
prepare_go() (
    use_own_go_cache
    (cd "$clients/redsync" && go build -o "$built/redsync" .)
    cd "$clients/etcd"
    go build -o "$built/etcd-mutex" .
    # One package at a time: the compiler needs much memory for some of them.
    go build -o "$built/etcdctl" go.etcd.io/etcd/etcdctl/v3
    go build -o "$built/etcd-server" go.etcd.io/etcd/server/v3
)

prepare_consul() (
    use_own_go_cache
    cd "$clients/consul"
    go build -o "$built/consul" github.com/hashicorp/consul
)

prepare_kubernetes() (
    use_own_go_cache
    (cd "$clients/kubernetes" && go build -o "$built/leader" .)
    cd "$clients/kube-apiserver"
    go build -o "$built/kube-apiserver" k8s.io/kubernetes/cmd/kube-apiserver
)

prepare_java() {
    prepare_java_client redisson
    prepare_java_client curator
    prepare_java_client jetcd
    prepare_java_client shedlock
    prepare_java_client lock-client
}

prepare_java_client() { # name
    local from=("$clients/$1/pom.xml") code=$clients/$1/Client.java
    if ! is_done "$1" "${from[@]}" || [ ! -d "$built/$1/jars" ]; then
        rm -rf "${built:?}/$1"
        mvn --quiet --batch-mode --no-transfer-progress --strict-checksums --file "${from[0]}" \
            -Dmaven.repo.local="$built/m2" dependency:copy-dependencies -DoutputDirectory="$built/$1/jars"
        done_with "$1" "${from[@]}"
    fi
    if ! is_done "$1-classes" "${from[@]}" "$code" || [ ! -d "$built/$1/classes" ]; then
        rm -rf "$built/$1/classes"
        javac -Xlint:all -cp "$built/$1/jars/*" -d "$built/$1/classes" "$code"
        done_with "$1-classes" "${from[@]}" "$code"
    fi
}

# In parallel: most of it is network latency. Each in its own process group, to be ended with its descendants.
jobs=()
end_jobs() {
    for job in "${jobs[@]}"; do kill -- "-${job%%:*}" 2>/dev/null || true; done
}
trap end_jobs EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
set -m
languages=(python node go java)
if [ "${DLOCK_INTEROP_CONSUL:-}" = 1 ]; then
    languages+=(consul)
else
    echo "# without Consul, which takes 5 minutes to build: DLOCK_INTEROP_CONSUL=1"
fi
if [ "${DLOCK_INTEROP_KUBERNETES:-}" = 1 ]; then
    languages+=(kubernetes)
else
    echo "# without kube-apiserver, which takes 10 minutes to build: DLOCK_INTEROP_KUBERNETES=1"
fi
for language in "${languages[@]}"; do
    ( set -e; "prepare_$language" ) >"$built/$language.log" 2>&1 </dev/null &
    jobs+=("$!:$language")
done
set +m
if [ -z "${DLOCK:-}" ]; then
    cargo build --locked --quiet
    DLOCK=${CARGO_TARGET_DIR:-$PWD/target}/debug/dlock
fi
DLOCK=$(realpath "$DLOCK")
failed=()
for job in "${jobs[@]}"; do
    wait "${job%%:*}" || { failed+=("${job#*:}"); cat "$built/${job#*:}.log" >&2; }
done
jobs=()
[ "${#failed[@]}" = 0 ] || die "cannot prepare: ${failed[*]}, see above"
[ -x "$DLOCK" ] || die "no dlock at $DLOCK"

work=$(mktemp -d "${TMPDIR:-/tmp}/dlock-interop.XXXXXX")
driver=
clean() {
    [ -z "$driver" ] || { kill "$driver" 2>/dev/null && wait "$driver" 2>/dev/null; } || true
    rm -rf "$work"
}
trap clean EXIT
# No bytecode beside the sources. In the background, so that a signal to this script is obeyed at once.
DLOCK=$DLOCK DLOCK_INTEROP=$built TMPDIR=$work PYTHONDONTWRITEBYTECODE=1 \
    "$built/python/bin/python" tests/interop/drive.py "$@" </dev/null 9>&- &
driver=$!
status=0
wait "$driver" || status=$?
driver=
exit "$status"
