#!/usr/bin/env bash
# Puts a release together from what packaging/build.sh has built for each architecture. .github/workflows/release.yml
# calls it; it needs neither GitHub nor a network.
#
#   packaging/release.sh --check [TAG]           whether this source can be released, and as TAG; prints the version
#   packaging/release.sh DIRECTORY BUILT...      BUILT: a directory of packaging/build.sh, one for each architecture
#
#   DIRECTORY/files/       what users download: archives, packages, bills of materials, and SHA256SUMS of them all
#   DIRECTORY/image/       the binaries and licences in the archives, in place of the stage `build` of packaging/Dockerfile
#   DIRECTORY/notes.md     the section of this version in CHANGELOG.md
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() { printf 'release.sh: %s\n' "$*" >&2; exit 1; }
usage() { echo "usage: packaging/release.sh --check [TAG] | DIRECTORY BUILT..." >&2; exit 64; }

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)

# The lines of the changelog between the heading of a version and the next one.
changes() { awk -v heading="## [$1]" '/^## \[/ { inside = index($0, heading) == 1; next } inside' CHANGELOG.md; }
has_text() { grep '[^[:space:]]' >/dev/null; }

check() { # tag, or nothing
    [[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] ||
        die "version $version in Cargo.toml is not X.Y.Z; others have no package and would become the newest image"
    changes "$version" | has_text || die "CHANGELOG.md says nothing about $version"
    [ -n "$1" ] || return 0
    [ "$1" = "v$version" ] || die "the tag is $1, and the version in Cargo.toml is $version"
    ! changes Unreleased | has_text || die "CHANGELOG.md has changes under [Unreleased]: they belong to $version"
}

case ${1:-} in
--check)
    [ "$#" -le 2 ] || usage
    check "${2:-}"
    echo "$version"
    exit
    ;;
-* | '') usage ;;
esac
[ "$#" -ge 2 ] || usage
check ''
[ ! -e "$1" ] || [ -z "$(ls -A "$1")" ] || die "$1 is not empty"
mkdir -p "$1/files"
directory=$(realpath "$1")
shift

for built in "$@"; do
    [ -e "$built/SHA256SUMS" ] || die "no SHA256SUMS in $built: packaging/build.sh $built"
    (cd "$built" && sha256sum --quiet --strict --check SHA256SUMS) || die "the files in $built are not those that were built"
    archive='' others=0
    while read -r _ name; do
        case $name in
        dlock) continue ;; # without its architecture; it is in the archive
        "dlock-$version-"*.tar.gz) archive=$name ;;
        "dlock-$version-"*.cdx.json | "dlock_$version-"*.deb) others=$((others + 1)) ;;
        *) die "$built/SHA256SUMS names $name, which is no file of version $version" ;;
        esac
        [ ! -e "$directory/files/$name" ] || die "$name is in two directories"
        cp "$built/$name" "$directory/files"
    done <"$built/SHA256SUMS"
    [ "$others" = 2 ] || die "$built has not both a package and a bill of materials: packaging/build.sh $built"
    case $archive in
    '') die "$built has no archive: packaging/build.sh $built" ;;
    *-x86_64-*) architecture=amd64 ;;
    *-aarch64-*) architecture=arm64 ;;
    *) die "what does Docker call the architecture of $archive?" ;;
    esac
    unpacked=$directory/image/dist/$architecture
    mkdir -p "$unpacked/doc"
    tar --extract --gzip --file="$built/$archive" --directory="$unpacked" --no-same-owner --strip-components=1 \
        "${archive%.tar.gz}"/{dlock,LICENSE-MIT,LICENSE-APACHE,third-party.txt}
    mv "$unpacked"/{LICENSE-MIT,LICENSE-APACHE,third-party.txt} "$unpacked/doc"
done

changes "$version" >"$directory/notes.md"
(cd "$directory/files" && sha256sum -- * >../SHA256SUMS && mv ../SHA256SUMS .)
printf 'release.sh: dlock %s, in %s:\n' "$version" "$directory"
(cd "$directory" && sed 's/^/  /' files/SHA256SUMS)
