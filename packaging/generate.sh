#!/usr/bin/env bash
# Regenerates man/ by packaging/manual. Run it after every change of commands, options or the texts of the pages;
# a test fails until then. (completions/ is not generated: its scripts call dlock.)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# dlock contains the pages, and is built first.
cargo build --quiet --example manual
rm -f man/*
"${CARGO_TARGET_DIR:-target}/debug/examples/manual" man
