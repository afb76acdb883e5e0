#!/usr/bin/env bash
# Runs the tests that load the whole machine (`scale::*`), one at a time, so that they do not disturb other
# tests and are not disturbed by them:
#
#   tests/scale.sh                   all of them, in some three minutes
#   tests/scale.sh trees             those of one module, or whatever else `scale::` is followed by
#
# tests/run.sh leaves them out, and installs what they need. .ci/run calls both.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export DLOCK_TEST_PYTHON=${DLOCK_TEST_PYTHON:-$PWD/target/python/bin/python}
PATH=$PATH:/usr/sbin:/sbin
filters=("${@/#/scale::}")
[ "$#" != 0 ] || filters=(scale::)
# Under nohup, or in the background of a script, signals are ignored from the start, which the tests would inherit.
usual_signals=()
! env --default-signal true 2>/dev/null || usual_signals=(env --default-signal)

# The tests run the example `probe` under dlock; `cargo test --test it` does not build it.
cargo build --locked --example probe </dev/null
cargo test --locked --test it --no-run </dev/null
begin=$SECONDS
"${usual_signals[@]}" cargo test --locked --test it -- --test-threads 1 "${filters[@]}" </dev/null || {
    echo "scale.sh: FAILED after $((SECONDS - begin))s" >&2
    exit 1
}
echo "scale.sh: all passed in $((SECONDS - begin))s"
