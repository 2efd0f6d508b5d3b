#!/usr/bin/env bash
# Builds a wheel of the Python binding alone, with the C library in it: by maturin, as pip does by itself.
#
#   tools/binding.sh [FOLDER [PROFILE [OPTION...]]]
#
# FOLDER is where the wheel goes (build/binding), PROFILE is cargo's (release), OPTION maturin's. What builds it is in
# PYTHON (build/python, by tools/bootstrap.sh python); without that, `pip install ./python` fetches it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=${1:-build/binding}
profile=${2:-release}
python=${PYTHON:-build/python}

[[ -x $python/bin/maturin ]] || {
    printf 'binding: error: %s is missing: run "tools/bootstrap.sh python" first\n' "$python" >&2
    exit 1
}

# What cargo tells a test of its crate: build scripts of dependencies look at it (ring's at CARGO_PKG_NAME), so that the
# whole release would be compiled again, and once more for whoever builds it next.
unset "${!CARGO_PKG_@}" "${!CARGO_MANIFEST_@}"
export PATH="$PWD/$python/bin:$PATH" MATURIN_PEP517_ARGS="--profile $profile ${*:3}"
"$python/bin/python" -m pip wheel --quiet --disable-pip-version-check --no-build-isolation \
    --no-deps --no-index --wheel-dir "$out" ./python
