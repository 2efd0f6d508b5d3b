#!/usr/bin/env bash
# Builds the Python wheel, with the C library in it.
#
#   tools/wheel.sh [LIBRARY [FOLDER]]
#
# LIBRARY is the C library (build/lib/libisthmus.so, from make build), FOLDER where the wheel
# goes (build/wheel). What builds it is in build/python (tools/bootstrap.sh python).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

library=${1:-build/lib/libisthmus.so}
out=${2:-build/wheel}

die() {
    printf 'wheel: error: %s\n' "$*" >&2
    exit 1
}

[[ -e $library ]] || die "$library is missing: run 'make build' first"
[[ -x build/python/bin/python ]] || die "build/python is missing: run 'tools/bootstrap.sh python' first"

abi=$(sed -n 's/^#define ISTHMUS_ABI_VERSION //p' include/isthmus.h)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Setuptools writes beside its sources.
cp -r python/pyproject.toml python/setup.py python/README.md python/src "$work"
cp -L "$library" "$work/src/isthmus/libisthmus.so.$abi"
build/python/bin/python -m pip wheel --quiet --disable-pip-version-check --no-build-isolation \
    --no-deps --no-index --wheel-dir "$out" "$work"
