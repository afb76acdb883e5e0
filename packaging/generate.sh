#!/usr/bin/env bash
# Regenerates man/ with dlock itself. Run it after every change of commands, options or the texts of the
# pages; a test fails until then. (completions/ is printed by dlock unchanged: it is part of its source.)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cargo build --quiet
rm -rf man
"${CARGO_TARGET_DIR:-target}/debug/dlock" man man
