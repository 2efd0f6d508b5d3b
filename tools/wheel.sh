#!/usr/bin/env bash
# Builds the wheel that pip installs: provider, command, C library and header, manual pages, Python binding.
#
#   tools/wheel.sh           build/wheel/isthmus-VERSION-py3-none-manylinux_2_28_ARCH.whl, for glibc 2.28 and later.
#                            It is linked by zig, which knows older versions of glibc (tools/bootstrap.sh manylinux).
#   tools/wheel.sh --here    ...-linux_ARCH.whl, for this machine's glibc, of what tools/build.sh has made
#
# Below an environment's prefix it puts what `make install` puts below /usr/local. `isthmus` finds the provider there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

arch=$(uname -m)
out=build/wheel
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

case ${1:-} in
    '') platform=manylinux_2_28_$arch python=build/manylinux ;;
    --here) platform=linux_$arch python=build/python ;;
    *)
        printf 'wheel: error: "%s" is no option; there is --here\n' "$1" >&2
        exit 2
        ;;
esac

if [[ $platform == manylinux* ]]; then
    triple=$arch-unknown-linux-gnu
    export PATH="$PWD/$python/bin:$PATH" CARGO_TARGET_DIR=$PWD/build/target-manylinux
    for library in isthmus-ofi isthmus-c; do
        cargo-zigbuild rustc --release --locked --target "$triple.2.28" -p "$library" --lib --crate-type cdylib
    done
    cargo-zigbuild zigbuild --release --locked --target "$triple.2.28" -p isthmus
    BUILD=$stage/build TARGET=$CARGO_TARGET_DIR/$triple tools/build.sh --collect
    build=$stage/build
    unset CARGO_TARGET_DIR
else
    build=build
fi
# By this machine's linker; what it links is replaced.
PYTHON=$python tools/binding.sh "$stage/binding"

"$python/bin/python" -m wheel unpack --dest "$stage/unpacked" "$stage"/binding/*.whl
root=$(echo "$stage"/unpacked/*)
data=$root/$(basename "$root").data
library=$(readlink "$build/lib/libisthmus.so")
install -m 755 "$build/lib/$library" "$root/isthmus/_native/lib_native.so"
strip --strip-unneeded "$root/isthmus/_native/lib_native.so"
# As an installation; what starts with "bin" goes where pip puts commands.
BUILD=$build PREFIX=/prefix DESTDIR=$stage/installed tools/install.sh >/dev/null
mkdir -p "$data"
mv "$stage/installed/prefix" "$data/data"
mkdir -p "$data/scripts"
mv "$data/data/bin/isthmus" "$data/scripts/"
# A wheel holds no links: the C library by the name that programs load, and the MPI mover's command as a script.
rm -rf "$data"/data/{bin,lib/systemd,lib/mpi,share/modulefiles}
cp "$build/lib/pkgconfig/isthmus.pc" "$data/data/lib/pkgconfig/"
find "$data/data" -type l -delete
info=$(echo "$root"/*.dist-info)
printf '[console_scripts]\nisthmus-cp = isthmus.__main__:mover\n' >"$info/entry_points.txt"
sed -i "s/^Tag: .*/Tag: py3-none-$platform/" "$info/WHEEL"
mkdir -p "$out"
rm -f "$out"/isthmus-*"$platform".whl
"$python/bin/python" -m wheel pack --dest-dir "$out" "$root"
[[ $platform != manylinux* ]] || "$python/bin/python" -m auditwheel show "$out"/isthmus-*"$platform".whl
