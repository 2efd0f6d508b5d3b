#!/usr/bin/env bash
# Builds the provider, the commands and the C library for older systems: for glibc 2.28 (RHEL 8, Debian 10, SLES 15 SP6)
# and later, into build/portable. `make wheel` and `make tarball` pack them.
#
#   tools/portable.sh
#
# It links by zig, which knows the symbols of older versions of glibc (tools/bootstrap.sh manylinux).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# shellcheck source=tools/versions.env
source tools/versions.env

triple=$(uname -m)-unknown-linux-gnu
export PATH="$PWD/build/manylinux/bin:$PATH" CARGO_TARGET_DIR=$PWD/build/target-portable
command -v cargo-zigbuild >/dev/null || {
    echo 'portable: error: build/manylinux is missing: run "tools/bootstrap.sh manylinux" first' >&2
    exit 1
}

# One kind of library at a time, as in tools/build.sh.
for library in isthmus-ofi isthmus-c; do
    cargo-zigbuild rustc --release --locked --target "$triple.$GLIBC_VERSION" -p "$library" --lib --crate-type cdylib
done
cargo-zigbuild zigbuild --release --locked --target "$triple.$GLIBC_VERSION" -p isthmus
BUILD=build/portable TARGET=$CARGO_TARGET_DIR/$triple tools/build.sh --collect
tools/licences.py build/portable/THIRD-PARTY
tools/glibc.sh "$GLIBC_VERSION" build/portable/bin/isthmus build/portable/lib/libisthmus-fi.so \
    build/portable/lib/libisthmus.so
