#!/usr/bin/env bash
# Makes man/ anew by dlock itself. To be run after every change of commands, options or the texts of the pages; a test
# fails until then. (completions/ is what dlock prints: it is part of its source.)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cargo build --quiet
rm -rf man
"${CARGO_TARGET_DIR:-target}/debug/dlock" man man
