#!/usr/bin/env bash
# Builds the Python wheel, with the C library in it: by maturin, as pip does by itself.
#
#   tools/wheel.sh [FOLDER [PROFILE]]
#
# FOLDER is where the wheel goes (build/wheel), PROFILE is cargo's (release). What builds it is in
# build/python (tools/bootstrap.sh python); without that, `pip install ./python` fetches it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=${1:-build/wheel}
profile=${2:-release}

die() {
    printf 'wheel: error: %s\n' "$*" >&2
    exit 1
}

[[ -x build/python/bin/maturin ]] || die "build/python is missing: run 'tools/bootstrap.sh python' first"

export PATH="$PWD/build/python/bin:$PATH" MATURIN_PEP517_ARGS="--profile $profile"
build/python/bin/python -m pip wheel --quiet --disable-pip-version-check --no-build-isolation \
    --no-deps --no-index --wheel-dir "$out" ./python
