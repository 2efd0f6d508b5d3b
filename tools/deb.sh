#!/usr/bin/env bash
# Packs what `make build` has made as a Debian package: build/deb/isthmus_VERSION_ARCH.deb.
#
#   tools/deb.sh
#
# Its contents are those of `make install PREFIX=/usr`, with libraries where Debian has those of its architecture.
# packaging/debian has the rest. It needs debhelper (tools/bootstrap.sh packages); lintian says what is wrong with it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

command -v dh >/dev/null || {
    echo 'deb: error: debhelper is missing: run "tools/bootstrap.sh packages" first' >&2
    exit 1
}
version=$(tools/version.sh)
work=build/deb/isthmus-$version
rm -rf build/deb
mkdir -p "$work"
cp -r packaging/debian "$work/debian"
# When the sources were last changed: the same sources give the same package.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
cat >"$work/debian/changelog" <<END
isthmus ($version-1) unstable; urgency=medium

  * The changes of this release are in changelog.gz.

 -- $(sed -n 's/^Maintainer: //p' packaging/debian/control)  $(LC_ALL=C date -uRd "@$SOURCE_DATE_EPOCH")
END
source=$PWD build=${BUILD:-$PWD/build}
tools/licences.py "$build/THIRD-PARTY"
(cd "$work" && SOURCE=$source BUILD=$build dpkg-buildpackage --build=binary --no-sign)
lintian --allow-root --fail-on error,warning --tag-display-limit 0 build/deb/*.deb
ls -l build/deb/*.deb
