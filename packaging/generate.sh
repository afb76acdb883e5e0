#!/usr/bin/env bash
# Regenerates man/ by packaging/manual. Run it after every change of commands, options or the texts of the pages;
# a test fails until then. (completions/ is not generated: its scripts call dlock.)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# dlock contains the pages, so that a new one has to exist before dlock is built.
sed -n 's/^    "\(dlock.*\)"$/man\/\1/p' src/commands/man.rs | xargs touch
cargo build --quiet --example manual
rm -f man/*
"${CARGO_TARGET_DIR:-target}/debug/examples/manual" man
