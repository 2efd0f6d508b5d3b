#!/usr/bin/env bash
# Builds the release and puts it where the tests, the demo and users look:
# build/lib/libisthmus-fi.so (a folder for FI_PROVIDER_PATH) and build/bin/isthmus.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=${CARGO_TARGET_DIR:-target}

cargo build --release --locked -p isthmus -p isthmus-ofi

# put FROM TO: by rename, so that a program that has the old one mapped keeps it.
put() {
    mkdir -p "$(dirname "$2")"
    cmp -s "$1" "$2" && return
    cp "$1" "$2.new"
    mv "$2.new" "$2"
}
# Cargo cannot name a library with a hyphen; libfabric wants NAME-fi.so.
put "$target/release/libisthmus_fi.so" build/lib/libisthmus-fi.so
put "$target/release/isthmus" build/bin/isthmus
