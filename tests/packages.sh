#!/usr/bin/env bash
# Tests the packages: the Debian package is installed into an otherwise empty directory and run there, against
# a Redis by address, by /etc/hosts and by DNS; then removed. The tarball is unpacked and run, and so are the
# GitHub action, the GitLab template and the command line of the systemd service. The bill of materials is compared with
# the binary and with Cargo.lock, and packaging/release.sh puts a release together.
#
#   tests/packages.sh [DIRECTORY]       what packaging/build.sh has built there; default: target/dist
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# What is tested would inherit the signals that the caller ignores, as nohup and the background of a script do.
if [ -z "${USUAL_SIGNALS:-}" ] && env --default-signal true 2>/dev/null; then
    USUAL_SIGNALS=yes exec env --default-signal "$PWD/tests/packages.sh" "$@"
fi

die() { echo "packages.sh: $*" >&2; exit 1; }
need() { command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] || die "$1 is missing: apt-get install $2"; }
need dpkg dpkg
need redis-server redis-server
need redis-cli redis-tools
need flock util-linux
need python3 python3
need curl curl
need cc gcc
PATH=$PATH:/usr/sbin:/sbin
python=
for candidate in "${DLOCK_TEST_PYTHON:-}" target/python/bin/python python3; do
    if [ -n "$candidate" ] && "$candidate" -c 'import yaml' 2>/dev/null; then python=$candidate; break; fi
done
[ -n "$python" ] || die "PyYAML is missing: tests/run.sh puts it into target/python, or: apt-get install python3-yaml"

if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "dpkg and chroot need root, and there is no sudo"
    exec sudo --non-interactive DLOCK_TEST_PYTHON="$python" "$PWD/tests/packages.sh" "$@"
fi

dist=$(realpath "${1:-target/dist}")
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
deb=$(compgen -G "$dist/dlock_$version-*.deb") || die "no package in $dist: packaging/build.sh"
tarball=$(compgen -G "$dist/dlock-$version-*.tar.gz") || die "no tarball in $dist: packaging/build.sh"
bill=${tarball%.tar.gz}.cdx.json
[ -f "$bill" ] || die "no bill of materials in $dist: packaging/build.sh"

work=$(mktemp -d "${TMPDIR:-/tmp}/dlock-packages.XXXXXX")
redis='' dns=''
clean() {
    [ -z "$redis" ] || kill "$redis" 2>/dev/null || true
    [ -z "$dns" ] || kill "$dns" 2>/dev/null || true
    wait 2>/dev/null || true
    ! mountpoint -q "$work/root/dev/null" 2>/dev/null || umount "$work/root/dev/null"
    rm -rf "$work"
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

failures=0
check() { # what, expected, found
    if [ "$2" = "$3" ]; then echo "  ok    $1"; else
        echo "  FAIL  $1: expected '$2', found '$3'"
        failures=$((failures + 1))
    fi
}

# --- servers ----------------------------------------------------------------------------------------------------------
mkdir -m 700 "$work/redis"
for try in 1 2 3 4 5 6 7 8 9 10; do
    port=$((20000 + RANDOM % 12000))
    redis-server --port "$port" --bind 127.0.0.1 --dir "$work/redis" --save '' >"$work/redis.log" 2>&1 &
    redis=$!
    for _ in $(seq 100); do
        kill -0 "$redis" 2>/dev/null || continue 2
        if [ "$(redis-cli -p "$port" info server 2>/dev/null | tr -d '\r' | sed -n 's/^process_id://p')" = "$redis" ]; then
            break 2
        fi
        sleep 0.05
    done
done
[ "$try" != 10 ] || die "redis-server does not start: $(tail -1 "$work/redis.log")"

# A DNS server that resolves only redis.example.test, and reports when it listens.
mkfifo "$work/listens"
python3 - >"$work/listens" 2>"$work/dns.log" <<'DNS' &
import socket, struct
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.86.75.64", 53))
print("listens", flush=True)
while True:
    query, client = server.recvfrom(4096)
    end, labels = 12, []
    while query[end]:
        labels.append(query[end + 1 : end + 1 + query[end]])
        end += query[end] + 1
    question, kind = query[12 : end + 5], struct.unpack("!H", query[end + 1 : end + 3])[0]
    known = b".".join(labels).lower() == b"redis.example.test"
    answer = b"\xc0\x0c" + struct.pack("!HHIH4B", 1, 1, 60, 4, 127, 0, 0, 1) if known and kind == 1 else b""
    head = query[:2] + struct.pack("!HHHHH", 0x8180 if known else 0x8183, 1, bool(answer), 0, 0)
    server.sendto(head + question + answer, client)
DNS
dns=$!
read -r answer <"$work/listens" || answer=$(tail -n 1 "$work/dns.log")
[ "$answer" = listens ] || die "no DNS server on 127.86.75.64:53: $answer"

echo "== $(basename "$deb")"
(cd "$dist" && sha256sum --quiet --check SHA256SUMS) && sums=right || sums=wrong
check "the sums in SHA256SUMS" right "$sums"

# --- install ----------------------------------------------------------------------------------------------------------
root=$work/root
mkdir -p "$root/var/lib/dpkg/updates" "$root/var/lib/dpkg/info" "$root/tmp" "$root/dev"
touch "$root/var/lib/dpkg/status" "$root/var/lib/dpkg/available"
dpkg --root="$root" --log="$work/dpkg.log" --install "$deb" >"$work/installed" 2>&1 || die "$(cat "$work/installed")"
check "dpkg installs it, and warns of nothing" "" "$(grep -i -E 'warn|error' "$work/installed" || true)"
check "it is installed" "ii " "$(dpkg-query --root="$root" --show --showformat='${db:Status-Abbrev}' dlock)"
check "it needs no other package" "" "$(dpkg-query --root="$root" --show --showformat='${Depends}${Pre-Depends}' dlock)"

{
    echo /usr/bin/dlock
    for page in man/*.[157]; do echo "/usr/share/man/man${page##*.}/${page##*/}.gz"; done
    echo /usr/share/bash-completion/completions/dlock
    echo /usr/share/zsh/vendor-completions/_dlock
    echo /usr/share/fish/vendor_completions.d/dlock.fish
    for name in README.md changelog.gz changelog.Debian.gz copyright third-party.txt.gz examples/config.toml; do echo "/usr/share/doc/dlock/$name"; done
    for example in packaging/systemd/* packaging/prometheus/*.rules.yml; do echo "/usr/share/doc/dlock/examples/${example#packaging/}"; done
} | LC_ALL=C sort >"$work/expected"
find "$root" -path "$root/var" -prune -o -type f -printf '/%P\n' | LC_ALL=C sort >"$work/found"
check "what is in it" "" "$(diff "$work/expected" "$work/found" || true)"
check "there are pages of each section" "yes yes yes" "$(for section in 1 5 7; do compgen -G "man/*.$section" >/dev/null && echo yes; done | xargs)"
check "everything is root's, for all to read, and only dlock can be run" "/usr/bin/dlock 755 0:0" \
    "$(cd "$root" && find usr -type f ! \( -perm 644 -user 0 -group 0 \) -printf '/%p %m %U:%G\n')"

same() { cmp --silent "$1" "$2" && echo same || echo different; }
for page in man/*.[157]; do
    gzip --decompress --stdout "$root/usr/share/man/man${page##*.}/${page##*/}.gz" >"$work/page" 2>/dev/null || true
    check "$page, compressed" same "$(same "$page" "$work/page")"
done
check "the completion of bash" same "$(same completions/dlock.bash "$root/usr/share/bash-completion/completions/dlock")"
check "the completion of zsh" same "$(same completions/_dlock "$root/usr/share/zsh/vendor-completions/_dlock")"
check "the completion of fish" same "$(same completions/dlock.fish "$root/usr/share/fish/vendor_completions.d/dlock.fish")"

# --- run, without the rest of a system --------------------------------------------------------------------------
# dlock needs /dev/null. Where devices do not work (nodev, a user namespace), use this system's own.
mknod -m 666 "$root/dev/null" c 1 3 2>/dev/null || touch "$root/dev/null"
if ! { [ -c "$root/dev/null" ] && cat "$root/dev/null"; } 2>/dev/null; then
    mount --bind /dev/null "$root/dev/null" || die "cannot have a /dev/null in $root"
fi
ours="dlock $version"
inside() { env -i PATH=/usr/bin:/usr/sbin:/bin:/sbin timeout 60 chroot "$root" /usr/bin/dlock "$@" 2>&1 && echo "exit 0" || echo "exit $?"; }
# -q suppresses the warning that there is no /proc.
run() { inside run -q "$@" -- dlock --version; }
by_name() { run -b "redis://$1:$port" --connect-timeout 20s job; }
check "it says its version" "$ours
exit 0" "$(inside --version)"
check "a lock on this host" "$ours
exit 0" "$(run job)"
check "the lock is where the documentation says" yes "$([ -f "$root/var/lib/dlock/job.lock" ] && echo yes)"
check "a lock on a Redis, by address" "$ours
exit 0" "$(by_name 127.0.0.1)"
# Unchanged, and with all commented-out lines enabled.
sed 's/^#\([a-z[]\)/\1/' packaging/config.toml >"$root/tmp/config.toml"
check "the sample configuration" "exit 0" "$(inside config show --config /usr/share/doc/dlock/examples/config.toml | tail -n 1)"
check "the sample configuration, all of it" 'backend = "prod" # /tmp/config.toml:8
exit 0' "$(inside config show --config /tmp/config.toml | grep -E '^(backend |exit )' | tr -s ' ')"
mkdir -p "$root/etc"
echo '127.0.0.1 localhost store.internal' >"$root/etc/hosts"
check "by localhost" "$ours
exit 0" "$(by_name localhost)"
check "by a name in /etc/hosts" "$ours
exit 0" "$(by_name store.internal)"
echo 'nameserver 127.86.75.64' >"$root/etc/resolv.conf"
check "by DNS" "$ours
exit 0" "$(by_name redis.example.test)"
check "a name that is in neither" "dlock: job on redis://gone.example.test:$port/0: cannot find the address of gone.example.test: failed to lookup address information: Name or service not known; the command did not run, see --retry
exit 69" "$(by_name gone.example.test)"
printf 'nameserver 127.86.75.65\noptions timeout:1 attempts:1\n' >"$root/etc/resolv.conf"
check "a name server that does not reply" "dlock: job on redis://redis.example.test:$port/0: cannot find the address of redis.example.test: failed to lookup address information: Temporary failure in name resolution; the command did not run, see --retry
exit 69" "$(by_name redis.example.test)"
echo 'nameserver 127.86.75.64' >"$root/etc/resolv.conf"

# On many systems nsswitch.conf(5) names more than files and dns. Those modules are built for the system's C
# library, and crash a static program, which has another one. This module ends every process that loads it.
mkdir -p "$root/lib" "$root/usr/lib"
echo '__attribute__((constructor)) static void loaded(void) { __builtin_trap(); }' |
    cc -shared -nostdlib -x c -o "$root/lib/libnss_trap.so.2" -
cp "$root/lib/libnss_trap.so.2" "$root/usr/lib/libnss_trap.so.2"
printf 'passwd: trap files\nhosts: trap [!UNAVAIL=return] files dns\n' >"$root/etc/nsswitch.conf"
check "by DNS, beside a module for another C library" "$ours
exit 0" "$(by_name redis.example.test)"
check "a user that only such a module may know" "dlock: file: needs a home directory, and this user has none: name a directory, such as file:///var/lock/jobs
exit 78" "$(env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin timeout 60 chroot --userspec=54321:54321 "$root" /usr/bin/dlock run -q job -- dlock --version 2>&1 && echo "exit 0" || echo "exit $?")"
rm -r "${root:?}/lib" "${root:?}/usr/lib"

# --- remove -----------------------------------------------------------------------------------------------------------
dpkg --root="$root" --log="$work/dpkg.log" --purge dlock >"$work/removed" 2>&1 || die "$(cat "$work/removed")"
check "dpkg removes it, and warns of nothing" "" "$(grep -i -E 'warn|error' "$work/removed" || true)"
check "nothing is left of it" "" "$(find "$root/usr" -mindepth 1 2>/dev/null || true)"

# --- the tarball ------------------------------------------------------------------------------------------------------
echo "== $(basename "$tarball")"
tar --extract --gzip --file="$tarball" --directory="$work"
unpacked=$work/$(basename "$tarball" .tar.gz)
check "it says its version" "$ours" "$("$unpacked/dlock" --version)"
mkdir "$work/locks"
mkfifo "$work/ready"
exec {ready}<>"$work/ready"
# shellcheck disable=SC2016 # expanded by the command
"$unpacked/dlock" run -b "file://$work/locks" job -- \
    bash -c 'trap "exit 5" RTMIN; echo ready >"$0"; while :; do sleep 0.1; done' "$work/ready" &
job=$!
read -r -t 60 -u "$ready" _ || die "the command does not start"
exec {ready}<&-
kill -34 "$job"
status=0
wait "$job" || status=$?
check "the first real-time signal, which musl uses itself, is passed on" 5 "$status"
check "the same binary" same "$(same "$unpacked/dlock" "$dist/dlock")"
check "the same pages and completions" "" "$(diff -r man "$unpacked/man"; diff -r completions "$unpacked/completions")"

# --- the bill of materials --------------------------------------------------------------------------------------------
echo "== $(basename "$bill")"
check "it names what is linked, and nothing else" "" "$(python3 - "$bill" "$dist/dlock" <<'BILL'
import json, pathlib, re, sys
bill, binary = json.loads(pathlib.Path(sys.argv[1]).read_text()), pathlib.Path(sys.argv[2]).read_text("latin-1")
crates = {(c["name"], c["version"]): c["hashes"][0]["content"] for c in bill["components"] if c["purl"].startswith("pkg:cargo/")}
entry = r'^name = "(.*)"\nversion = "(.*)"\nsource = ".*"\nchecksum = "(.*)"$'
locked = {(name, version): sum for name, version, sum in re.findall(entry, pathlib.Path("Cargo.lock").read_text(), re.M)}
for crate, sum in crates.items():
    if locked.get(crate) != sum:
        print(f"{crate}: Cargo.lock has the sum {locked.get(crate)}")
# The message of a panic contains the path of its source.
named = set(re.findall(r"/registry/src/[^/]+/([A-Za-z0-9_-]+?)-([0-9]+\.[0-9]+\.[0-9]+[^/]*)/", binary))
for name, version in sorted(named):
    if (name, version) not in crates:
        print(f"{name} {version} is in the binary, and not in the bill")
if len(named) < 20:
    print(f"the binary names only {len(named)} crates")
names = {name for name, _ in crates}
dependencies = re.search(r"^\[dependencies\]$(.*?)^\[", pathlib.Path("Cargo.toml").read_text(), re.M | re.S)[1]
for name, rest in re.findall(r"^([a-z0-9_-]+) = (.*)$", dependencies, re.M):
    renamed = re.search('package = "(.*?)"', rest)
    if (renamed[1] if renamed else name) not in names:
        print(f"{name} is in Cargo.toml, and not in the bill")
for name in names & {"mlua", "rcgen", "tempfile", "clap_derive", "cc"}:
    print(f"{name} is for tests or for the build, and in the bill")
for name in {"rust-std", "musl"} - {c["name"] for c in bill["components"]}:
    print(f"{name} is not in the bill")
BILL
)"

# --- the release ------------------------------------------------------------------------------------------------------
echo "== release.sh"
release() { { packaging/release.sh "$@" >/dev/null; } 2>&1 && echo "exit 0" || echo "exit $?"; }
check "it puts a release together" "exit 0" "$(release "$work/release" "$dist")"
files="SHA256SUMS $(basename "$bill") $(basename "$tarball") $(basename "$deb")"
check "the files" "$(tr ' ' '\n' <<<"$files" | LC_ALL=C sort)" "$(find "$work/release/files" -type f -printf '%f\n' | LC_ALL=C sort)"
# README.md names those of x86_64.
for name in $(sed "s/\$(uname -m)/$(uname -m)/; s/_amd64/_$(dpkg --print-architecture)/" README.md | grep -oE 'dlock[-_][0-9][^ "*]*\.(tar\.gz|deb)'); do
    check "README.md names $name" yes "$([ -f "$work/release/files/$name" ] && echo yes)"
done
check "their sums" "$(tr ' ' '\n' <<<"$files" | sed '/^SHA256SUMS$/d; s/$/: OK/' | LC_ALL=C sort)" \
    "$(cd "$work/release/files" && sha256sum --strict --check SHA256SUMS 2>&1 | LC_ALL=C sort)"
check "the archive, as a user gets it" "$ours" "$(mkdir "$work/user" && cd "$work/user" &&
    curl --silent "file://$work/release/files/$(basename "$tarball")" | tar -xz && "./$(basename "$unpacked")/dlock" --version)"
image=$(echo "$work"/release/image/dist/*)
check "what the image gets" "dlock doc/LICENSE-APACHE doc/LICENSE-MIT doc/third-party.txt" \
    "$(find "$image" -type f -printf '%P\n' | LC_ALL=C sort | xargs)"
check "for this architecture" "$(dpkg --print-architecture)" "$(basename "$image")"
check "the binary of the image" "$ours" "$("$image/dlock" --version)"
check "the notes" yes "$(grep '^- ' "$work/release/notes.md" >/dev/null && echo yes)"
check "a second architecture that is the same" "release.sh: $(awk '$2 != "dlock" { print $2; exit }' "$dist/SHA256SUMS") is in two directories
exit 1" "$(release "$work/twice" "$dist" "$dist")"
cp -R "$dist" "$work/changed"
echo >>"$work/changed/$(basename "$deb")"
check "a file that was changed after the build" "exit 1" "$(release "$work/refused" "$work/changed" | tail -n 1)"
check "is not released" "" "$(find "$work/refused/files" -type f)"
mkdir -p "$work/source/packaging"
cp packaging/release.sh "$work/source/packaging"
tagged() { # version in Cargo.toml, tag, changelog
    echo "version = \"$1\"" >"$work/source/Cargo.toml"
    printf '%b\n' "$3" >"$work/source/CHANGELOG.md"
    "$work/source/packaging/release.sh" --check "$2" 2>&1 | sed 's/^release.sh: //'
}
check "a tag" "1.2.3" "$(tagged 1.2.3 v1.2.3 '## [Unreleased]\n\n## [1.2.3] - today\n\n- new\n\n## [1.2.2]\n\n- old')"
check "no tag" "1.2.3" "$(tagged 1.2.3 '' '## [Unreleased]\n\n- next\n\n## [1.2.3]\n\n- new')"
check "the tag of another version" "the tag is v1.2.4, and the version in Cargo.toml is 1.2.3" "$(tagged 1.2.3 v1.2.4 '## [1.2.3]\n\n- new')"
check "changes of no version" "CHANGELOG.md has changes under [Unreleased]: they belong to 1.2.3" \
    "$(tagged 1.2.3 v1.2.3 '## [Unreleased]\n\n- next\n\n## [1.2.3]\n\n- new')"
check "a version without changes" "CHANGELOG.md says nothing about 1.2.3" "$(tagged 1.2.3 v1.2.3 '## [1.2.3]\n\n## [1.2.2]\n\n- old')"

# --- the service ------------------------------------------------------------------------------------------------------
echo "== dlock-nightly.service"
line=$(sed -n 's/^ExecStart=//p' packaging/systemd/dlock-nightly.service)
printf '#!/bin/sh\necho backup complete\n' >"$work/backup.sh"
chmod 755 "$work/backup.sh"
line_here=${line//\/usr\/bin\/dlock/$dist/dlock}
read -ra words <<<"${line_here//\/usr\/local\/bin\/backup.sh/$work/backup.sh}"
nightly() { env -i PATH=/usr/bin:/bin DLOCK_BACKEND="redis://127.0.0.1:$port" "${words[@]}" 2>/dev/null && echo "exit 0" || echo "exit $?"; }
check "the first host runs $line" "backup complete
exit 0" "$(nightly)"
check "the second, whose timer fires later, does not" "exit 75" "$(nightly)"
# No service manager runs here. Test what is possible without one: no capability, no new privileges, another
# user.
chmod 755 "$work" "$dist" "$dist/dlock"
hardened() { setpriv --reuid=12345 --regid=12345 --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all "$@"; }
check "it works without any privilege" "backup complete" "$(DLOCK_BACKEND="redis://127.0.0.1:$port" hardened "$dist/dlock" run -q hardened -- "$work/backup.sh" 2>&1)"
unit=packaging/systemd/dlock-nightly.service
check "the unit is hardened" yes "$(systemd-analyze security --offline=yes --threshold=30 --no-pager "$unit" 2>&1 >/dev/null && echo yes)"

# --- pipelines --------------------------------------------------------------------------------------------------------
echo "== action.yml, dlock.gitlab-ci.yml"
"$python" tests/pipelines.py "$dist/dlock" "$deb" "$tarball" || failures=$((failures + 1))

echo
if [ "$failures" = 0 ]; then echo "packages.sh: all of them can be installed, run and removed"; else
    echo "packages.sh: $failures checks failed"
    exit 1
fi
