#!/usr/bin/env bash
# Writes packaging/order.ld: the functions that a run calls, for the linker to put side by side in the released binary. Of a
# file that is mapped into memory, the kernel maps the neighbours of each page that is touched, so what is scattered over the
# binary costs page faults at the start, memory while it runs, and time at the end.
#
#   packaging/order.sh BINARY URL...
#
#   BINARY   a release with its symbols: CARGO_PROFILE_DIST_STRIP=none packaging/build.sh --binary DIRECTORY
#   URL      a store to run under, such as file:///tmp/locks or redis://127.0.0.1
#
# A name that no longer exists does no harm, and a new function is put among the others: the list needs to be written again
# only when the benchmark shows it. Needs valgrind.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[ "$#" -ge 2 ] || { echo "usage: packaging/order.sh BINARY URL..." >&2; exit 64; }
command -v valgrind >/dev/null || { echo "order.sh: valgrind is missing: apt-get install valgrind" >&2; exit 1; }
binary=$1
shift
records=$(mktemp -d)
trap 'rm -rf "$records"' EXIT
for url in "$@"; do
    for options in --wait=1s "--once-per=1s --ttl=2s"; do
        # shellcheck disable=SC2086 # several words
        valgrind --quiet --tool=callgrind --demangle=no --trace-children=yes --log-file=/dev/null \
            --callgrind-out-file="$records/%p" "$binary" run -b "$url" --connect-timeout 30s $options order -- sleep 2
    done
done
{
    printf '/* Written by packaging/order.sh. */\nSECTIONS\n{\n  .text.run :\n  {\n'
    # Without the hashes, which change with a version: that of a function (legacy names) and those of crates (v0). The
    # section of a function that is rarely called is .text.unlikely.NAME.
    sed -n "s/^c\\{0,1\\}fn=([0-9]*) \\(_[RZ]N*[^' ]*\\).*/\\1/p" "$records"/* |
        sed -E 's/17h[0-9a-f]{16}E$/17h*/; /^_R/s/Cs[0-9A-Za-z]+_/Cs*_/g; s/.*/    *(.text*.&)/' | sort -u
    printf '  }\n}\nINSERT BEFORE .text;\n'
} >packaging/order.ld
# cargo does not notice that the linker script has changed.
touch src/main.rs
