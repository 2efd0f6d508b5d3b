#!/usr/bin/env bash
# Runs the models of crates/isthmus-wakeup: loom tries all orders in which their threads can run.
#
#   tools/models.sh [what the test program takes, such as a test's name]
set -euo pipefail
cd "$(dirname "$0")/.."

# Built apart: with other flags cargo would build all else anew each time.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/build}/models RUSTFLAGS="--cfg loom"
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
exec cargo test --locked --release -p isthmus-wakeup --lib -- "$@"
