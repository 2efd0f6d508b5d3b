#!/usr/bin/env bash
# Packs what tools/portable.sh has made as build/tarball/isthmus-VERSION-ARCH-glibcVERSION.tar.gz, which is unpacked
# into any folder, and may be moved with it.
#
#   tools/tarball.sh                     for the processor of this machine
#   ARCH=aarch64 tools/tarball.sh        for another one; RUNS (build/bin/isthmus) writes the manual pages
#
# Its contents are those of `make install`. `isthmus` finds the provider relative to itself, and so do the pkg-config
# file and the module for Lmod with all that they name.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# shellcheck source=tools/versions.env
source tools/versions.env

version=$(tools/version.sh)
arch=${ARCH:-$(uname -m)}
name=isthmus-$version-$arch-glibc$GLIBC_VERSION
build=build/portable
if [[ $arch != "$(uname -m)" ]]; then
    build+=-$arch
    export RUNS=${RUNS:-build/bin/isthmus} STRIP=''
fi
out=build/tarball
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

tools/glibc.sh "$GLIBC_VERSION" "$build"/{bin/isthmus,lib/libisthmus-fi.so,lib/libisthmus.so}
BUILD=$build PREFIX=/prefix DESTDIR=$stage tools/install.sh
mv "$stage/prefix" "$stage/$name"
# What is for one place of the file system only.
rm -rf "$stage/$name"/lib/{systemd,sysusers.d,tmpfiles.d,mpi}
cp "$build/lib/pkgconfig/isthmus.pc" "$stage/$name/lib/pkgconfig/"
module=$stage/$name/share/modulefiles/isthmus/$version.lua
{
    echo '-- The folder that the tarball was unpacked into.'
    echo 'local prefix = myFileName():match("^(.*)/share/modulefiles/")'
    sed 's|"/prefix/|prefix .. "/|' "$module"
} >"$module.new"
mv "$module.new" "$module"
chmod 644 "$module"
if grep -rIl /prefix "$stage/$name"; then
    echo 'tarball: error: these files name the folder that they were staged in' >&2
    exit 1
fi
mkdir -p "$out"
rm -f "$out"/isthmus-*-"$arch"-*.tar.gz
tar -C "$stage" --owner=0 --group=0 --sort=name --mtime="@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}" \
    -czf "$out/$name.tar.gz" "$name"
(cd "$out" && sha256sum "$name.tar.gz" >"$name.tar.gz.sha256")
ls -l "$out/$name.tar.gz"
