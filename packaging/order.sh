#!/usr/bin/env bash
# Writes packaging/order.ld: the functions that a run calls, for the linker to put side by side in the released binary. Of a
# file that is mapped into memory, the kernel maps the neighbours of each page that is touched, so what is scattered over the
# binary costs page faults at the start, memory while it runs, and time at the end.
#
#   packaging/order.sh BINARY URL...       writes the list
#   packaging/order.sh --check BINARY      only counts the names in the list that the binary does not have, and prints them
#
#   BINARY   a release with its symbols: CARGO_PROFILE_DIST_STRIP=none packaging/build.sh --binary DIRECTORY
#   URL      a store to run under, such as file:///tmp/locks or redis://127.0.0.1: file first, then the others by how much
#            they are used: a function is listed with the first store that calls it
#
# The linker ignores a name that no longer exists, and puts a new function among the others: the list needs to be written
# again when many names are missing, or when the benchmark shows it. Needs valgrind, and nm for the count.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() { echo "usage: packaging/order.sh BINARY URL... | --check BINARY" >&2; exit 64; }
need() { command -v "$1" >/dev/null || { echo "order.sh: $1 is missing: apt-get install $2" >&2; exit 1; }; }

# Names without the hashes, which change with a version: that of a function (legacy names) and those of crates (v0).
without_hashes() { sed -E 's/17h[0-9a-f]{16}E$/17h*/; /^_R/s/Cs[0-9A-Za-z]+_/Cs*_/g' | LC_ALL=C sort -u; }

# Prints the names in the list that are not in this binary, and their number.
check() {
    local symbols listed missing
    # A binary without symbols has none of the names.
    symbols=$(nm "$1" | sed -n 's/.* [tTwW] //p' | without_hashes)
    [ -n "$symbols" ] || { echo "order.sh: $1 has no symbols: build it with CARGO_PROFILE_DIST_STRIP=none" >&2; exit 65; }
    listed=$(sed -n 's/^ *\*(\.text\*\.\(.*\))$/\1/p' packaging/order.ld | LC_ALL=C sort -u)
    missing=$(LC_ALL=C comm -23 <(echo "$listed") <(echo "$symbols"))
    [ -z "$missing" ] || sed 's/^/order.sh: missing: /' <<<"$missing"
    echo "order.sh: $(grep -c . <<<"$missing" || true) of $(grep -c . <<<"$listed") names in packaging/order.ld are not in $1"
}

[ "$#" = 2 ] || [ "${1:-}" != --check ] || usage
[ "$#" -ge 2 ] || usage
need nm binutils
if [ "$1" = --check ]; then
    check "$2"
    exit
fi
need valgrind valgrind
binary=$1
shift
records=$(mktemp -d)
trap 'rm -rf "$records"' EXIT
store=0
for url in "$@"; do
    store=$((store + 1))
    mkdir "$records/$store"
    for options in --wait=1s "--once-per=1s --ttl=2s"; do
        # shellcheck disable=SC2086 # several words
        valgrind --quiet --tool=callgrind --demangle=no --trace-children=yes --dump-before=execve --log-file=/dev/null \
            --callgrind-out-file="$records/$store/%p" "$binary" run -b "$url" --connect-timeout 30s $options order -- sleep 2
    done
done
# Prints the functions that were called, each once, those of the first store first.
functions() {
    local directory
    for ((directory = 1; directory <= store; directory++)); do
        sed -n "s/^c\\{0,1\\}fn=([0-9]*) \\(_[RZ]N*[^' ]*\\).*/\\1/p" "$records/$directory"/* | without_hashes
    done | awk '!seen[$0]++'
}
# Prints the members of the C library with the functions that were called.
members_of_libc() {
    local library
    library=$(rustc --print sysroot)/lib/rustlib/$(uname -m)-unknown-linux-musl/lib/self-contained/libc.a
    sed -n "s/^c\\{0,1\\}fn=([0-9]*) \\([A-Za-z_][^' ]*\\).*/\\1/p" "$records"/*/* | LC_ALL=C sort -u >"$records/called"
    nm -A "$library" 2>/dev/null | sed -nE 's/^[^:]*:([^:]*):[0-9a-f]+ [TtW] (.*)$/\2 \1/p' | LC_ALL=C sort -u |
        LC_ALL=C join -o 2.2 "$records/called" - | LC_ALL=C sort -u
}

{
    printf '/* Written by packaging/order.sh. */\nSECTIONS\n{\n  .text.run :\n  {\n'
    members_of_libc | sed 's/.*/    *libc.a:&(.text .text.*)/'
    # The section of a function that is rarely called is .text.unlikely.NAME.
    functions | sed 's/.*/    *(.text*.&)/'
    printf '  }\n}\nINSERT BEFORE .text;\n'
} >packaging/order.ld
# cargo does not notice that the linker script has changed.
touch src/main.rs
check "$binary"
