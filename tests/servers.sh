#!/usr/bin/env bash
# Installs servers of other versions than this system's into target/servers, for the tests:
#
#   tests/servers.sh          afterwards there is target/servers/NAME/server for each NAME below
#
# They are packages of other Debian releases, with their libraries, unpacked and run by their own dynamic
# loader: nothing is installed, and apt's own lists and packages are not touched. Existing servers are kept.
# They come from the archives in the system's apt configuration, with its proxy and credentials.
#
# Read from the environment:
#   DLOCK_TEST_SERVERS   another directory, which several trees may share
#   DLOCK_TEST_MIRRORS   URLs of Debian archives, separated by spaces, instead of those of the system: needed where
#                        apt reads another distribution, or where a release has moved to an archive of old releases
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# name, release, package, program
servers=(
    'redis-6.0 bullseye redis-server redis-server'
    'redis-8.0 trixie redis-server redis-server'
    'valkey-8.1 trixie valkey-server valkey-server'
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

# A package and the packages of its libraries.
wanted() { # release, package
    # Each line begins 'URL' FILE SIZE; a file is NAME_VERSION_ARCHITECTURE.deb.
    private_apt "$1" apt-get install --no-install-recommends --print-uris -qq "$2" 2>"$directory/apt/$1/log" |
        awk '{ split($2, part, "_"); print part[1] }' | grep -E '^(lib|lua-|zlib|redis-|valkey-)'
}

make_server() { # name, release, package, program
    local name=$1 release=$2 package=$3 program=$4 new=$directory/$1.new packages loader libraries
    say "$name: the $package of Debian $release"
    learn "$release"
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
    rm -rf "$new/packages" "$new/root/usr/share"
    loader=$(cd "$new" && find root -name 'ld-linux*.so.*' | sort | head -n 1)
    [ -n "$loader" ] || die "no dynamic loader in what was unpacked for $name"
    # Usually there are two: /lib/TRIPLET and /usr/lib/TRIPLET.
    # shellcheck disable=SC2016  # it is for the script below
    libraries=$(cd "$new" && find root -type d -path '*/lib/*-linux-gnu' | sed 's,^,$here/,' | paste -sd :)
    cat >"$new/server" <<EOF
#!/bin/sh
# Replaces itself with the server. Debian's Redis 6.0 looks for the libraries of its scripts where they are installed.
here=\${0%/*}
LUA_CPATH=\$(find "\$here/root/usr/lib" -path '*/lua/5.1' -printf '%p/?.so;')
export LUA_CPATH
exec "\$here/$loader" --library-path "$libraries" "\$here/root/usr/bin/$program" "\$@"
EOF
    chmod 755 "$new/server"
    "$new/server" --version >"$new/version" 2>&1 || {
        cat "$new/version" >&2
        die "$name was unpacked but does not start, see above"
    }
    rm -rf "${directory:?}/$name"
    mv "$new" "$directory/$name"
}

mkdir -p "$directory"
for server in "${servers[@]}"; do
    read -r name release package program <<<"$server"
    [ -x "$directory/$name/server" ] || make_server "$name" "$release" "$package" "$program"
done
# The lists are large, and no longer needed.
rm -rf "$directory/apt"
