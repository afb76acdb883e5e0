#!/usr/bin/env bash
# End-to-end test of the main use: two "hosts" (each a Debian cron daemon with its own crontab, HOME, working directory and,
# where namespaces are allowed, its own host name) fire ./backup.sh in the same minute, on a shared directory and on a
# Redis. Exactly one of the two may run on each. A third job is over before the second host starts it, whose clock is late,
# and runs once only because of --once-per. Prints what happened; takes up to 100 seconds: cron counts in minutes.
#
#   tests/cron.sh                    uses target/dist/dlock, target/release/dlock, or target/debug/dlock
#   DLOCK=/usr/bin/dlock tests/cron.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() { echo "cron.sh: $*" >&2; exit 1; }
need() { command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] || die "$1 is missing: apt-get install $2"; }
need cron cron
need redis-server redis-server
need redis-cli redis-tools
need unshare util-linux
PATH=$PATH:/usr/sbin:/sbin

if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "cron needs root, and there is no sudo"
    exec sudo --non-interactive DLOCK="${DLOCK:-}" "$PWD/tests/cron.sh"
fi

dlock=${DLOCK:-}
for built in target/dist/dlock target/release/dlock target/debug/dlock; do
    [ -n "$dlock" ] || { [ -x "$built" ] && dlock=$PWD/$built; } || true
done
[ -x "$dlock" ] || die "no dlock to test: packaging/build.sh --binary, or set DLOCK"

work=$(mktemp -d "${TMPDIR:-/tmp}/dlock-cron.XXXXXX")
daemons=() redis='' cron_d=''
clean() {
    [ "${#daemons[@]}" = 0 ] || kill "${daemons[@]}" 2>/dev/null || true
    [ -z "$redis" ] || kill "$redis" 2>/dev/null || true
    [ -z "$cron_d" ] || rm -f "$cron_d"-web-1 "$cron_d"-web-2
    wait 2>/dev/null || true
    rm -rf "$work"
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# --- the stores -------------------------------------------------------------------------------------------------------
mkdir -m 700 "$work/locks" "$work/redis"
for try in 1 2 3 4 5 6 7 8 9 10; do
    port=$((20000 + RANDOM % 12000))
    redis-server --port "$port" --bind 127.0.0.1 --dir "$work/redis" --save '' >"$work/redis.log" 2>&1 &
    redis=$!
    for _ in $(seq 100); do
        kill -0 "$redis" 2>/dev/null || continue 2
        # Check that it is the Redis started here.
        if [ "$(redis-cli -p "$port" info server 2>/dev/null | tr -d '\r' | sed -n 's/^process_id://p')" = "$redis" ]; then
            break 2
        fi
        sleep 0.05
    done
done
[ "$try" != 10 ] || die "redis-server does not start: $(tail -1 "$work/redis.log")"

# --- the job: a real archive, some seconds of work, and a check that it can be read back ------------------------------
for host in web-1 web-2; do
    mkdir "$work/$host"
    cat >"$work/$host/backup.sh" <<'JOB'
#!/bin/sh
# Archives about 40 MB of this system's own files. $1: where the archive goes; what it did is appended to $1/journal.
set -eu
echo "$(date +%s.%N) start $HOME token $DLOCK_FENCING_TOKEN" >>"$1/journal"
find /usr/bin /usr/lib /usr/share -xdev -type f -size -4000k -printf '%s %p\n' 2>/dev/null |
    LC_ALL=C sort -k 2 | awk '{ sum += $1; if (sum > 4e7) exit; sub(/^[0-9]+ /, ""); print }' >files
tar --create --gzip --absolute-names --files-from=files --file="$1/backup.tar.gz.part"
count=$(tar --list --absolute-names --file="$1/backup.tar.gz.part" | wc -l)
mv "$1/backup.tar.gz.part" "$1/backup.tar.gz"
sleep 2
echo "backup.sh on $(basename "$HOME"): $count files, $(wc -c <"$1/backup.tar.gz") bytes"
echo "$(date +%s.%N) end $HOME" >>"$1/journal"
JOB
    chmod 755 "$work/$host/backup.sh"
    mkdir -p "$work/out/file" "$work/out/redis" "$work/out/once"
    late=$([ "$host" = web-1 ] || echo "sleep 5; ")
    cat >"$work/$host/crontab" <<CRONTAB
SHELL=/bin/sh
HOME=$work/$host
PATH=$(dirname "$dlock"):/usr/local/bin:/usr/bin:/bin
MAILTO=""
* * * * * USER_FIELD echo "\$(date +\%s.\%N) fired" >>file.log;  dlock run -b file://$work/locks     nightly-job -- ./backup.sh $work/out/file  >>file.log  2>&1; echo "exit \$?" >>file.log
* * * * * USER_FIELD echo "\$(date +\%s.\%N) fired" >>redis.log; dlock run -b redis://127.0.0.1:$port nightly-job -- ./backup.sh $work/out/redis >>redis.log 2>&1; echo "exit \$?" >>redis.log
* * * * * USER_FIELD ${late}dlock run -b redis://127.0.0.1:$port --once-per 23h once-job -- sh -c 'date >>$work/out/once/journal' >>once.log 2>&1; echo "exit \$?" >>once.log
CRONTAB
done

# --- two cron daemons -------------------------------------------------------------------------------------------------
# Each has its own crontab directory, pid file and host name in namespaces of its own, so nothing of this machine's
# cron is touched. Where namespaces are not allowed (a container): this machine's /etc/cron.d, and one daemon.
private_cron='
    mount -t tmpfs none /run && mount -t tmpfs none /var/spool/cron && mount -t tmpfs none /etc/cron.d &&
    mount --bind /dev/null /etc/crontab && hostname "$1" && mkdir -m 700 /var/spool/cron/crontabs &&
    sed "s/USER_FIELD //" "$2/crontab" >/var/spool/cron/crontabs/root && chmod 600 /var/spool/cron/crontabs/root &&
    exec cron -f'
if unshare --mount --uts --propagation private true 2>/dev/null; then
    how="a cron daemon each, with a crontab and a host name of its own"
    for host in web-1 web-2; do
        unshare --mount --uts --propagation private sh -c "$private_cron" sh "$host" "$work/$host" &
        daemons+=($!)
    done
else
    how="one cron daemon, /etc/cron.d (namespaces are not allowed here)"
    cron_d=/etc/cron.d/dlock-test-$$
    for host in web-1 web-2; do
        sed 's/USER_FIELD/root/' "$work/$host/crontab" >"$cron_d-$host"
        chmod 644 "$cron_d-$host"
    done
    cron -f >"$work/cron.log" 2>&1 & # ends at once when a cron runs here already: then that one does it
    daemons+=($!)
fi
echo "dlock:  $("$dlock" --version)"
echo "hosts:  $how"
echo "start:  $(date '+%H:%M:%S'), waiting for the minute"

finished() { cat "$work"/web-?/"$1.log" 2>/dev/null | grep -c '^exit ' || true; }
for _ in $(seq 1200); do
    [ "$(finished file)" -ge 2 ] && [ "$(finished redis)" -ge 2 ] && [ "$(finished once)" -ge 2 ] && break
    sleep 0.1
done
kill "${daemons[@]}" 2>/dev/null || true
daemons=()

# --- results ----------------------------------------------------------------------------------------------------
echo "end:    $(date '+%H:%M:%S')"
failures=0
check() { # what, expected, found
    if [ "$2" = "$3" ]; then echo "  ok    $1: $3"; else
        echo "  FAIL  $1: expected '$2', found '$3'"
        failures=$((failures + 1))
    fi
}
for store in file redis; do
    echo
    echo "== $store"
    for host in web-1 web-2; do
        grep "$store.log" "$work/$host/crontab" | sed 's/USER_FIELD echo.*fired" [^;]*; */... /; s/ 2>&1; echo.*//; s/  */ /g' |
            sed "s#^#$host crontab: #; s#$work#...#g"
        sed "s#^#$host $store.log: #; s#$work#...#g" "$work/$host/$store.log" 2>/dev/null || true
    done
    journal=$work/out/$store/journal
    sed "s#^#journal: #; s#$work#...#g" "$journal" 2>/dev/null || true
    statuses=$(cat "$work"/web-?/"$store.log" 2>/dev/null | sed -n 's/^exit //p' | sort -n | tr '\n' ' ')
    check "the job was started" 1 "$(grep -c ' start ' "$journal" 2>/dev/null || true)"
    check "the job ended" 1 "$(grep -c ' end ' "$journal" 2>/dev/null || true)"
    check "exit statuses" "0 75 " "$statuses"
    check "the loser says who holds it" 1 \
        "$(cat "$work"/web-?/"$store.log" | grep -c '^dlock: nightly-job is held by .*backup.sh.*see --wait' || true)"
    check "the archive can be read" yes "$(gzip --test "$work/out/$store/backup.tar.gz" 2>/dev/null && echo yes || echo no)"
    # Not sequentially: both fired before the job ended.
    check "both fired while the job ran" yes "$(
        { sed -n 's/ fired$//p' "$work"/web-?/"$store.log" | sort -n | tail -1
          sed -n 's/ end .*//p' "$journal"; } 2>/dev/null | awk 'NR == 1 { fired = $1 } END { print (NR == 2 && fired < $1) ? "yes" : "no" }'
    )"
done
echo
echo "== once"
sed "s#^#once.log: #" "$work"/web-?/once.log 2>/dev/null || true
check "the job ran once" 1 "$(wc -l <"$work/out/once/journal" 2>/dev/null || true)"
check "exit statuses" "0 0 " "$(cat "$work"/web-?/once.log 2>/dev/null | sed -n 's/^exit //p' | sort -n | tr '\n' ' ')"
check "the second host says who has done it" 1 \
    "$(cat "$work"/web-?/once.log | grep -c '^dlock: once-job was done by .* ago; not due for another ' || true)"
echo
check "keys left in Redis that nobody will free" "" "$(redis-cli -p "$port" --scan 2>/dev/null |
    while read -r key; do [ "$(redis-cli -p "$port" type "$key")" != string ] || [ "$(redis-cli -p "$port" ttl "$key")" != -1 ] ||
        case $key in *nightly-job) echo "$key" ;; esac; done)"

echo
if [ "$failures" = 0 ]; then echo "cron.sh: exactly one of two ran, on file: and on redis:, and once a night"; else
    echo "cron.sh: $failures checks failed"
    exit 1
fi
