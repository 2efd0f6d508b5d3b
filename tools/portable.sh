#!/usr/bin/env bash
# Builds the provider, the commands and the C library for older systems: for glibc 2.28 (RHEL 8, Debian 10, SLES 15 SP6)
# and later, into build/portable. `make wheel` and `make tarball` pack them.
#
#   tools/portable.sh                     for the processor of this machine
#   ARCH=aarch64 tools/portable.sh        for another one, into build/portable-aarch64
#
# It links by zig, which knows the symbols of older versions of glibc, and other processors (tools/bootstrap.sh manylinux).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# shellcheck source=tools/versions.env
source tools/versions.env

arch=${ARCH:-$(uname -m)}
triple=$arch-unknown-linux-gnu
out=build/portable
if [[ $arch != "$(uname -m)" ]]; then
    out=build/portable-$arch
    # tools/install.sh has no strip for it.
    export CARGO_PROFILE_RELEASE_STRIP=symbols
fi
export PATH="$PWD/build/manylinux/bin:$PATH" CARGO_TARGET_DIR=$PWD/build/target-portable
command -v cargo-zigbuild >/dev/null || {
    echo 'portable: error: build/manylinux is missing: run "tools/bootstrap.sh manylinux" first' >&2
    exit 1
}
[[ -d $(rustc --print target-libdir --target "$triple") ]] || {
    printf 'portable: error: Rust has no libraries for %s: run "rustup target add %s" first\n' "$triple" "$triple" >&2
    exit 1
}

# One kind of library at a time, as in tools/build.sh.
for library in isthmus-ofi isthmus-c; do
    cargo-zigbuild rustc --release --locked --target "$triple.$GLIBC_VERSION" -p "$library" --lib --crate-type cdylib
done
cargo-zigbuild zigbuild --release --locked --target "$triple.$GLIBC_VERSION" -p isthmus
BUILD=$out TARGET=$CARGO_TARGET_DIR/$triple tools/build.sh --collect
tools/licences.py "$out/THIRD-PARTY" "$triple"
tools/glibc.sh "$GLIBC_VERSION" "$out"/{bin/isthmus,lib/libisthmus-fi.so,lib/libisthmus.so}
