#!/usr/bin/env bash
# Installs servers of other versions than this system's into target/servers, for the tests:
#
#   tests/servers.sh          afterwards there is target/servers/NAME/server for each NAME below, and in
#                             target/servers/NAME/version its exact version, which is printed
#
# They are packages of other Debian releases, with their libraries, unpacked and run by their own dynamic
# loader: nothing is installed, and apt's own lists and packages are not touched. Existing servers are kept.
# Those of the second table are built from the Go module proxy, by the go of this system (1.21 or later, which fetches the one
# that a module asks for), or else by that of a newer Debian release.
# They come from the archives in the system's apt configuration, with its proxy and credentials.
# A server whose version no release has any more is a failure that names it.
#
# Read from the environment:
#   DLOCK_TEST_SERVERS   another directory, which several trees may share
#   DLOCK_TEST_MIRRORS   URLs of Debian archives, separated by spaces, instead of those of the system: needed where
#                        apt reads another distribution, or where a release has moved to an archive of old releases
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# name, releases (the first that has the version), package, version, program
newest=stable,oldstable,unstable
servers=(
    'redis-6.0 bullseye redis-server 6.0 usr/bin/redis-server'
    'redis-8.0 trixie redis-server 8.0 usr/bin/redis-server'
    'valkey-8.1 trixie valkey-server 8.1 usr/bin/valkey-server'
    "valkey-9 $newest valkey-server 9 usr/bin/valkey-server"
    "mysql-9.7 $newest mysql-server-core 9.7 usr/sbin/mysqld"
    "mariadb-11.8 $newest mariadb-server-core 11.8 usr/sbin/mariadbd"
    "postgresql-18 $newest postgresql-18 18 usr/lib/postgresql/18/bin/postgres"
    "etcd-3.5 $newest etcd-server 3.5 usr/bin/etcd"
    "zookeeper-3.9 $newest zookeeper 3.9 java"
    'consul-1.8 bullseye consul 1.8 usr/bin/consul'
)
# name, package to build, version
built=(
    'versitygw-1.8 github.com/versity/versitygw/cmd/versitygw v1.8.0'
)
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
directory=${DLOCK_TEST_SERVERS:-$PWD/target/servers}

say() { printf 'servers.sh: %s\n' "$*"; }
die() { printf 'servers.sh: %s\n' "$*" >&2; exit 1; }

# apt with separate lists, packages, and a system on which nothing is installed.
private_apt() { # release, program, arguments...
    local own=$directory/apt/$1 program=$2
    shift 2
    "$program" -q -o Dir::Etc="$own/etc" -o Dir::State="$own/state" -o Dir::Cache="$own/cache" \
        -o Dir::Etc::netrc=/etc/apt/auth.conf -o Dir::Etc::netrcparts=/etc/apt/auth.conf.d \
        -o Dir::State::status="$own/status" -o APT::Sandbox::User='' -o Acquire::Languages=none \
        -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false -o Acquire::Retries=3 "$@" </dev/null
}

# The archives that may have a release, one URL a line.
mirrors() {
    if [ -n "${DLOCK_TEST_MIRRORS:-}" ]; then
        tr ' ' '\n' <<<"$DLOCK_TEST_MIRRORS"
    else
        # shellcheck disable=SC2016  # apt-get expands it
        apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | sort -u
    fi
}

# Fetches the package list of a release, once. An archive without it, or that Debian has not signed, is skipped.
learn() { # release
    local own=$directory/apt/$1 log=$directory/apt/$1.log mirror
    [ ! -e "$own/learnt" ] || return 0
    [ -e "$keyring" ] || die "$keyring is missing: install the package debian-archive-keyring"
    for mirror in $(mirrors); do
        rm -rf "$own"
        mkdir -p "$own"/{etc,state/lists/partial,cache/archives/partial}
        : >"$own/status"
        printf 'deb [signed-by=%s] %s %s main\n' "$keyring" "$mirror" "$1" >"$own/etc/sources.list"
        if private_apt "$1" apt-get -o APT::Update::Error-Mode=any update >>"$log" 2>&1; then
            touch "$own/learnt"
            return 0
        fi
    done
    [ ! -e "$log" ] || cat "$log" >&2
    die "no archive of Debian $1 in apt's configuration: name one in DLOCK_TEST_MIRRORS"
}

# The first of these releases that has a version, and the exact one.
find_version() { # releases, package, version
    local release exact
    for release in ${1//,/ }; do
        learn "$release" >&2
        exact=$(private_apt "$release" apt-cache madison "$2" 2>>"$directory/apt/$release.log" |
            awk -F ' *[|] *' '{ print $2 }' | grep -E "^([0-9]+:)?${3//./[.]}([.+~-]|\$)" | head -n 1) || true
        [ -z "$exact" ] || { printf '%s %s\n' "$release" "$exact"; return 0; }
    done
    return 1
}

# A package and the packages of its libraries.
wanted() { # release, package
    local also=() kinds='^(lib|lua-|zlib|redis-|valkey-|mysql-|mariadb-|postgresql-|etcd-|consul)'
    # It depends on a Java virtual machine with a desktop's libraries; this system has one.
    [ "$2" != zookeeper ] || kinds='^(lib.*-java|zookeeper)$'
    # The script that creates its database needs a program of another package.
    [ "$2" != mariadb-server-core ] || also=(mariadb-client-core)
    # Each line begins 'URL' FILE SIZE; a file is NAME_VERSION_ARCHITECTURE.deb.
    private_apt "$1" apt-get install --no-install-recommends --print-uris -qq "$2" "${also[@]}" 2>"$directory/apt/$1/log" |
        awk '{ split($2, part, "_"); print part[1] }' | grep -E "$kinds"
}

# Replaces each program with a script that runs it by the loader and with the libraries that it was unpacked with. A
# program finds those that it starts beside itself.
wrap_programs() { # directory with root
    local loader libraries program to_root name=''
    loader=$(cd "$1/root" && find . -name 'ld-linux*.so.*' | sort | head -n 1)
    [ -n "$loader" ] || die "no dynamic loader in what was unpacked"
    # Usually there are two: /lib/TRIPLET and /usr/lib/TRIPLET.
    # shellcheck disable=SC2016  # it is for the script below
    libraries=$(cd "$1/root" && find . -type d \( -path '*/lib/*-linux-gnu' -o -path '*/lib/mysql/private' \) |
        sed 's,^,$root/,' | paste -sd :)
    # Before glibc 2.33, a loader cannot pass another name on.
    # shellcheck disable=SC2016
    ! "$1/root/$loader" --help 2>&1 | grep -q -e --argv0 || name='--argv0 "$0"'
    # A program may be a link to another one, and go by its own name.
    find -L "$1/root" -type f -perm -u+x \( -path '*/bin/*' -o -path '*/sbin/*' \) | sort >"$1/programs"
    while read -r program; do
        [ ! -L "$program" ] || ln -f "$(realpath "$program")" "$program"
    done <"$1/programs"
    while read -r program; do
        [ "$(head -c 4 "$program" | tail -c 3 | tr -d '\0')" = ELF ] || continue
        to_root=$(realpath --relative-to="$(dirname "$program")" "$1/root")
        mv "$program" "$program.elf"
        cat >"$program" <<EOF
#!/bin/sh
root=\${0%/*}/$to_root
exec "\$root/$loader" --library-path "$libraries" $name "\$0.elf" "\$@"
EOF
        chmod 755 "$program"
    done <"$1/programs"
    rm "$1/programs"
}

make_server() { # name, releases, package, version, program
    local name=$1 package=$3 version=$4 program=$5 new=$directory/$1.new found release exact packages
    found=$(find_version "$2" "$package" "$version") ||
        die "$name is gone: no release of Debian ($2) has $package $version; change the table in tests/servers.sh"
    read -r release exact <<<"$found"
    say "$name: unpacking $package $exact of Debian $release"
    packages=$(wanted "$release" "$package") || die "Debian $release has no $package that can be unpacked"
    rm -rf "$new"
    mkdir -p "$new/packages" "$new/root"
    # shellcheck disable=SC2086  # names of packages have no spaces
    (cd "$new/packages" && private_apt "$release" apt-get download $packages >"$new/log" 2>&1) || {
        cat "$new/log" >&2
        die "cannot download $package of Debian $release, see above"
    }
    for deb in "$new"/packages/*.deb; do
        dpkg-deb -x "$deb" "$new/root"
    done
    rm -rf "$new/packages" "$new/root/usr/share"/{doc,info,lintian,locale,man}
    if [ "$program" = java ]; then
        cat >"$new/server" <<'EOF'
#!/bin/sh
# Replaces itself with this system's Java virtual machine. Arguments: its options, the class, those of the class.
# The first two name archives of this system in their manifests, which may be of another version.
jars=${0%/*}/root/usr/share/java
exec java -cp "$jars/zookeeper-jute.jar:$jars/zookeeper.jar:$jars/*" "$@"
EOF
        set -- org.apache.zookeeper.version.VersionInfoMain
    else
        wrap_programs "$new"
        cat >"$new/server" <<EOF
#!/bin/sh
# Replaces itself with the server. Debian's Redis 6.0 looks for the libraries of its scripts where they are installed.
here=\${0%/*}
LUA_CPATH=\$(find "\$here/root/usr/lib" -path '*/lua/5.1' -printf '%p/?.so;')
export LUA_CPATH
exec "\$here/root/$program" "\$@"
EOF
        set -- --version
    fi
    chmod 755 "$new/server"
    "$new/server" "$@" >"$new/log" 2>&1 || true
    grep -q -e "[ =v]${version//./[.]}[.]" "$new/log" || {
        cat "$new/log" >&2
        die "$name was unpacked but does not start, or is of another version, see above"
    }
    printf '%s %s of Debian %s\n' "$package" "$exact" "$release" >"$new/version"
    rm -rf "${directory:?}/$name"
    mv "$new" "$directory/$name"
}

# A go that can build what needs a newer one: its path.
find_go() {
    local exact found release version own=$directory/go
    if command -v go >/dev/null && [[ $(go version) =~ go1\.(2[1-9]|[3-9][0-9]) ]]; then
        command -v go
        return 0
    fi
    if [ ! -x "$own/root/usr/bin/go" ]; then
        found=$(find_version "$newest" golang-go 2:1) || die "no release of Debian has golang-go"
        read -r release exact <<<"$found"
        version=${exact#2:}
        version=${version%%[~-]*}
        say "go: unpacking golang-$version of Debian $release" >&2
        rm -rf "$own"
        mkdir -p "$own/packages" "$own/root"
        (cd "$own/packages" && private_apt "$release" apt-get download "golang-$version-go" "golang-$version-src" \
            >"$own/log" 2>&1) || { cat "$own/log" >&2; die "cannot download golang-$version, see above"; }
        for deb in "$own"/packages/*.deb; do
            dpkg-deb -x "$deb" "$own/root"
        done
        rm -rf "$own/packages"
        mkdir -p "$own/root/usr/bin"
        printf '#!/bin/sh\nGOROOT=%s exec %s/bin/go "$@"\n' "$own/root/usr/lib/go-$version"{,} >"$own/root/usr/bin/go"
        chmod 755 "$own/root/usr/bin/go"
    fi
    printf '%s\n' "$own/root/usr/bin/go"
}

build_server() { # name, package, version
    local name=$1 package=$2 version=$3 new=$directory/$1.new go
    go=$(find_go)
    say "$name: building $package $version"
    rm -rf "$new"
    mkdir -p "$new"
    GOBIN=$new GOFLAGS='-mod=mod -buildvcs=false' GOTOOLCHAIN=auto "$go" install "$package@$version" >"$new/log" 2>&1 </dev/null || {
        cat "$new/log" >&2
        die "cannot build $package, see above"
    }
    mv "$new/$(basename "$package")" "$new/server"
    "$new/server" --version >"$new/log" 2>&1 || { cat "$new/log" >&2; die "$name was built but does not start"; }
    printf '%s %s of the Go module proxy\n' "$(basename "$package")" "$version" >"$new/version"
    rm -rf "${directory:?}/$name"
    mv "$new" "$directory/$name"
}

mkdir -p "$directory"
for server in "${servers[@]}"; do
    read -r name releases package version program <<<"$server"
    [ -x "$directory/$name/server" ] || make_server "$name" "$releases" "$package" "$version" "$program"
    say "$name: $(head -n 1 "$directory/$name/version")"
done
for server in "${built[@]}"; do
    read -r name package version <<<"$server"
    [ -x "$directory/$name/server" ] || build_server "$name" "$package" "$version"
    say "$name: $(head -n 1 "$directory/$name/version")"
done
rm -rf "$directory/go"
# The lists are large, and no longer needed.
rm -rf "$directory/apt"
