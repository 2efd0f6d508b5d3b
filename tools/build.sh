#!/usr/bin/env bash
# Builds the release and puts it where the tests, the demo and users look:
# build/lib/libisthmus-fi.so (a folder for FI_PROVIDER_PATH) and build/bin/isthmus; for C
# programs build/include/isthmus.h, build/lib/libisthmus.so and its pkg-config file.
#
#   tools/build.sh [--collect]    with --collect: what was compiled before is only put there
#
# BUILD (build) is where it is put, TARGET (cargo's) where cargo has compiled it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=${TARGET:-${CARGO_TARGET_DIR:-target}}
build=${BUILD:-build}

# The libraries by themselves: as maturin builds one of them again for the Python binding alone, cargo has
# all but its last crate; and the command's dependencies make them no larger.
# One kind of library at a time: with two, cargo does not optimise across crates.
if [[ ${1:-} != --collect ]]; then
    for library in isthmus-ofi isthmus-c; do
        cargo rustc --release --locked -p "$library" --lib --crate-type cdylib
    done
    cargo build --release --locked -p isthmus
fi

# put FROM TO: by rename, so that a program that has the old one mapped keeps it.
put() {
    mkdir -p "$(dirname "$2")"
    cmp -s "$1" "$2" && return
    cp "$1" "$2.new"
    mv "$2.new" "$2"
}
# Cargo cannot name a library with a hyphen; libfabric wants NAME-fi.so.
put "$target/release/libisthmus_fi.so" "$build/lib/libisthmus-fi.so"
put "$target/release/isthmus" "$build/bin/isthmus"
# For launchers: mpiexec -n 4 isthmus-cp ...
ln -sfn isthmus "$build/bin/isthmus-cp"

# The number of the soname is ISTHMUS_ABI_VERSION of the header; C programs are linked
# against the name without it, and load the one with it.
abi=$(sed -n 's/^#define ISTHMUS_ABI_VERSION //p' include/isthmus.h)
put "$target/release/libisthmus_c.so" "$build/lib/libisthmus.so.$abi"
ln -sfn "libisthmus.so.$abi" "$build/lib/libisthmus.so"
put include/isthmus.h "$build/include/isthmus.h"
tools/pkgconfig.sh "$build/lib/pkgconfig/isthmus.pc"
