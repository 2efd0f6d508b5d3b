#!/usr/bin/env bash
# Builds the wheel that pip installs: provider, command, C library and header, manual pages, Python binding.
#
#   tools/wheel.sh           build/wheel/isthmus-VERSION-py3-none-manylinux_2_28_ARCH.whl, for glibc 2.28 and later,
#                            of what tools/portable.sh makes
#   ARCH=aarch64 tools/wheel.sh    the same for another processor; RUNS (build/bin/isthmus) writes the manual pages
#   tools/wheel.sh --here    ...-linux_ARCH.whl, for this machine's glibc, of what tools/build.sh has made
#
# Below an environment's prefix it puts what `make install` puts below /usr/local. `isthmus` finds the provider there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# shellcheck source=tools/versions.env
source tools/versions.env

arch=${ARCH:-$(uname -m)}
out=build/wheel
# Quick to fetch: 12 MB.
BYTES_MAX=12000000
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

case ${1:-} in
    '') platform=manylinux_${GLIBC_VERSION/./_}_$arch python=build/manylinux ;;
    --here) platform=linux_$arch python=build/python ;;
    *)
        printf 'wheel: error: "%s" is no option; there is --here\n' "$1" >&2
        exit 2
        ;;
esac

if [[ $platform == manylinux* ]]; then
    tools/portable.sh
    build=build/portable
    if [[ $arch != "$(uname -m)" ]]; then
        build+=-$arch
        export RUNS=${RUNS:-build/bin/isthmus} STRIP=''
    fi
else
    build=build
fi
# The binding loads the C library that C programs have, below. So nothing is compiled for it: maturin only describes it.
root=$stage/wheel
mkdir -p "$root/isthmus"
PATH="$PWD/$python/bin:$PATH" PYTHONPATH=python "$python/bin/python" - "$root" <<'DESCRIBE'
import os, sys
import backend

os.chdir(backend.HERE)
backend.declare()
backend.prepare_metadata_for_build_wheel(sys.argv[1])
DESCRIBE
cp python/src/isthmus/{*.py,py.typed} "$root/isthmus/"
info=$(echo "$root"/*.dist-info)
data=${info%.dist-info}.data
# As an installation; what starts with "bin" goes where pip puts commands.
BUILD=$build PREFIX=/prefix DESTDIR=$stage/installed tools/install.sh >/dev/null
mkdir -p "$data"
mv "$stage/installed/prefix" "$data/data"
mkdir -p "$data/scripts"
mv "$data/data/bin/isthmus" "$data/scripts/"
# A wheel holds no links: the C library by the name that programs load, and the MPI mover's command as a script.
rm -rf "$data"/data/{bin,lib/systemd,lib/sysusers.d,lib/tmpfiles.d,lib/mpi,lib/isthmus/collectives,share/modulefiles}
cp "$build/lib/pkgconfig/isthmus.pc" "$data/data/lib/pkgconfig/"
find "$data/data" -type l -delete
printf '[console_scripts]\nisthmus-cp = isthmus.__main__:mover\n' >"$info/entry_points.txt"
sed -i "s/^Tag: .*/Tag: py3-none-$platform/" "$info/WHEEL"
mkdir -p "$out"
rm -f "$out"/isthmus-*"$platform".whl
"$python/bin/python" -m wheel pack --dest-dir "$out" "$root"
made=$(echo "$out"/isthmus-*"$platform".whl)
# Packed again as tightly as deflate can, which `wheel pack` does not offer.
"$python/bin/python" - "$made" <<'PACK'
import os, sys, zipfile

path = sys.argv[1]
options = {"compression": zipfile.ZIP_DEFLATED, "compresslevel": 9}
with zipfile.ZipFile(path) as loose, zipfile.ZipFile(path + ".tight", "w", **options) as tight:
    for entry in loose.infolist():
        tight.writestr(entry, loose.read(entry), zipfile.ZIP_DEFLATED, 9)
os.replace(path + ".tight", path)
PACK
if [[ $platform == manylinux* ]]; then
    # It says which systems the libraries allow, and is believed before the name.
    said=$("$python/bin/python" -m auditwheel show "$made")
    printf '%s\n' "$said"
    grep -qF "\"$platform\"" <<<"$said" || {
        printf 'wheel: error: auditwheel does not find %s to be %s\n' "$made" "$platform" >&2
        exit 1
    }
fi
bytes=$(stat -c %s "$made")
((bytes < BYTES_MAX)) || {
    printf 'wheel: error: %s has %d bytes, more than %d\n' "$made" "$bytes" "$BYTES_MAX" >&2
    exit 1
}
printf 'wheel: %s, %d bytes\n' "$made" "$bytes"
