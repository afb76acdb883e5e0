#!/usr/bin/env bash
# Runs the seeded random faults (`random_faults::*`) on every store: dlocks, guards and commands that are killed, stopped
# and terminated, while the store is stopped, killed and disconnected. And `fuzzed_replies::*`: 2,000 connections to each
# kind of server, whose replies are damaged, which takes about a minute each:
#
#   tests/faults.sh                  two minutes on files and on Redis, half a minute on each other store
#   tests/faults.sh SECONDS          this long on files and on Redis, a quarter of it on each other store
#   tests/faults.sh SECONDS SEED     the choices of an earlier run, which printed its seed
#
# tests/run.sh leaves them out, and installs what they need. .ci/run calls both.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export DLOCK_TEST_PYTHON=${DLOCK_TEST_PYTHON:-$PWD/target/python/bin/python}
export DLOCK_TEST_RANDOM_SECONDS=${1:-120}
[ -z "${2:-}" ] || export DLOCK_TEST_RANDOM_SEED=$2
PATH=$PATH:/usr/sbin:/sbin
# Under nohup, or in the background of a script, signals are ignored from the start, which the tests would inherit.
usual_signals=()
! env --default-signal true 2>/dev/null || usual_signals=(env --default-signal)

# The tests run the example `probe` under dlock; `cargo test --test it` does not build it.
cargo build --locked --example probe </dev/null
cargo test --locked --test it --no-run </dev/null
begin=$SECONDS
# Eight at a time: most of them are waiting most of the time.
"${usual_signals[@]}" cargo test --locked --test it -- --test-threads 8 --show-output random_faults:: fuzzed_replies:: </dev/null || {
    echo "faults.sh: FAILED after $((SECONDS - begin))s" >&2
    exit 1
}
echo "faults.sh: all passed in $((SECONDS - begin))s"
