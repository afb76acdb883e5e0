#!/usr/bin/env bash
# Builds and checks the release files:
#
#   packaging/build.sh [DIRECTORY]            default: target/dist
#   packaging/build.sh --binary [DIRECTORY]   only the binary
#
#   DIRECTORY/dlock                           the binary: static, runs on every Linux of this architecture
#   DIRECTORY/dlock-VERSION-TARGET.tar.gz     the same with man pages, completions, examples and licences
#   DIRECTORY/dlock_VERSION-1_ARCH.deb        the same for Debian and Ubuntu
#   DIRECTORY/dlock-VERSION-TARGET.cdx.json   the bill of materials: what is linked into it, as CycloneDX
#   DIRECTORY/SHA256SUMS
#
# For this host's architecture, or for CARGO_BUILD_TARGET (x86_64-unknown-linux-musl, aarch64-unknown-linux-musl); then
# CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER names the compiler.
# Needs Rust with that target, which rustup installs, and a C compiler; for the archives python3, dpkg, and cargo-deb, which
# is put into target/tools when it is not there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'build.sh: %s\n' "$*"; }
die() { printf 'build.sh: %s\n' "$*" >&2; exit 1; }
need() { command -v "$1" >/dev/null || die "$1 is missing: apt-get install $2"; }
only_binary=no
if [ "${1:-}" = --binary ]; then
    only_binary=yes
    shift
fi
case ${1:-} in
-*) die "unknown option $1; there is only --binary" ;;
esac
command -v cargo >/dev/null || die "cargo is missing: install Rust, see https://rustup.rs"
need readelf binutils
if [ "$only_binary" = no ]; then
    need python3 python3
    need dpkg-deb dpkg
fi

dist=${1:-target/dist}
target=${CARGO_BUILD_TARGET:-$(rustc -vV | sed -n 's/^host: \([^-]*\).*/\1/p')-unknown-linux-musl}
case $target in
*-linux-musl) ;;
*) die "cannot build for $target: only for *-linux-musl; name one in CARGO_BUILD_TARGET" ;;
esac
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)

# --- required tools, checked before the build of a minute ------------------------------------------------------------
if [ "$only_binary" = no ]; then
    missing=()
    for pattern in man/dlock.1 'man/*.1' 'man/*.5' 'man/*.7' completions/dlock.bash completions/_dlock completions/dlock.fish \
        'packaging/prometheus/*.rules.yml' 'packaging/systemd/*.timer' packaging/config.toml; do
        compgen -G "$pattern" >/dev/null || missing+=("$pattern")
    done
    [ "${#missing[@]}" = 0 ] || die "not there, and part of the packages: ${missing[*]}"
    changelog=$(sed -n '1s/^dlock (\(.*\)-[0-9]*) .*/\1/p' packaging/debian/changelog)
    [ "$changelog" = "$version" ] || die "packaging/debian/changelog begins with version $changelog, Cargo.toml has $version"
    changelog=$(sed -n 's/^## \[\([0-9][^]]*\)\].*/\1/p' CHANGELOG.md | sed -n 1p)
    [ "$changelog" = "$version" ] || die "the first version in CHANGELOG.md is $changelog, Cargo.toml has $version"
fi

# --- the binary -------------------------------------------------------------------------------------------------------
# The binary has a fixed address: a position-independent static binary relocates itself first, and writes to
# 25 pages for that in every run. Stack, heap and the kernel's library (vDSO) have random addresses anyway.
# musl starts in a third of the time of a static glibc, which asks for every property of the processor: slow on a virtual
# machine. It looks up hosts and users itself, where a static glibc loads libraries of the host.
# getrandom(2) only: in a static build the getrandom crate would not find that function, and would open
# /dev/urandom, which does not exist in a bare chroot.
# The functions of a run are side by side: see packaging/order.sh. Mangling v0 gives each instance of a generic function
# a name of its own.
read -ra flags <<<"${RUSTFLAGS:-}"
flags+=(-C target-feature=+crt-static -C relocation-model=static --cfg 'getrandom_backend="linux_getrandom"'
    -C symbol-mangling-version=v0 -C "link-arg=-T$PWD/packaging/order.ld"
    "--remap-path-prefix=$PWD=." "--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo")
# The C code of the cryptography calls no library but for copying memory, so the compiler of the host will do. A hardened
# one would have it call functions of glibc.
name=${target//-/_}
linker=CARGO_TARGET_${name^^}_LINKER
export "CC_$name=$(printenv "CC_$name" || echo "${!linker:-cc}")"
export "CFLAGS_$name=$(printenv "CFLAGS_$name" || true) -U_FORTIFY_SOURCE"
CARGO_ENCODED_RUSTFLAGS=$(IFS=$'\x1f' && printf %s "${flags[*]}") # unlike RUSTFLAGS, for paths with spaces too
export CARGO_ENCODED_RUSTFLAGS
mebibytes() { awk -v bytes="$(stat -c %s "$1")" 'BEGIN { printf "%.1f MB", bytes / 1048576 }'; }
check_binary() { # binary, what it is, the most that it may have in MB
    readelf --program-headers --wide "$1" | grep INTERP >/dev/null && die "$1 is not static: it has an interpreter"
    readelf --dynamic --wide "$1" | grep NEEDED >/dev/null && die "$1 is not static: it needs shared libraries"
    readelf --file-header --wide "$1" | grep 'Type: *EXEC ' >/dev/null || die "$1 is not at a fixed address"
    # With its symbols it is larger: see packaging/order.sh.
    if [ "${CARGO_PROFILE_DIST_STRIP:-}" != none ] && [ "$(stat -c %s "$1")" -gt "$(($3 * 1048576))" ]; then
        die "$1 ($2) has $(mebibytes "$1"), more than $3 MB"
    fi
    say "$2: $(mebibytes "$1"), at most $3 MB"
}

say "dlock $version for $target"
if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ]; then
    rustup target add "$target" || die "Rust has no standard library for $target: rustup target add $target"
fi
mkdir -p "$dist" target/packaging
dist=$(realpath "$dist")
built=${CARGO_TARGET_DIR:-target}/$target/dist/dlock
# The one with everything is built last: the packages get what is there then.
cargo build --locked --profile dist --target "$target" --no-default-features --features file,redis
check_binary "$built" "file and redis" 7
cargo build --locked --profile dist --target "$target"
check_binary "$built" everything 10
install -m 755 "$built" "$dist/dlock"
[ "$only_binary" = no ] || exit 0

# --- the tarball ------------------------------------------------------------------------------------------------------
# Reproducible archives: the same source gives the same archives, with the times of the commit.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
python3 packaging/third-party.py "$target" >target/packaging/third-party.txt.part
mv target/packaging/third-party.txt.part target/packaging/third-party.txt
gzip -9nkf target/packaging/third-party.txt
gzip -9n <CHANGELOG.md >target/packaging/changelog.gz

name=dlock-$version-$target
python3 packaging/third-party.py --sbom "$target" >"$dist/$name.cdx.json"
rm -rf "target/packaging/$name"
mkdir -p "target/packaging/$name/examples"
cp "$dist/dlock" README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE target/packaging/third-party.txt "target/packaging/$name"
cp -R man completions "target/packaging/$name"
cp -R packaging/config.toml packaging/systemd "target/packaging/$name/examples"
mkdir "target/packaging/$name/examples/prometheus"
cp packaging/prometheus/*.rules.yml "target/packaging/$name/examples/prometheus"
tar --create --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime="@$SOURCE_DATE_EPOCH" \
    --directory=target/packaging "$name" | gzip -9n >"$dist/$name.tar.gz"
rm -r "target/packaging/$name"

# --- the Debian package -----------------------------------------------------------------------------------------------
PATH=$PWD/target/tools/bin:$PATH
if ! command -v cargo-deb >/dev/null; then
    say "installing cargo-deb into target/tools (some minutes, once)"
    # A tool for this host, which is used once: it is built quickly.
    CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
        env -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS -u CARGO_BUILD_TARGET cargo install cargo-deb --version '^3' --locked --root target/tools
fi
rm -f "$dist"/dlock_*.deb
cargo deb --profile dist --no-build --no-strip --locked --target "$target" --output "$dist/"
deb=$(compgen -G "$dist/dlock_${version}-*.deb") || die "cargo-deb made no package in $dist"

files=(dlock "$name.tar.gz" "$(basename "$deb")" "$name.cdx.json")
(cd "$dist" && sha256sum "${files[@]}" >SHA256SUMS)
for file in "${files[@]}"; do say "$dist/$file: $(mebibytes "$dist/$file")"; done
