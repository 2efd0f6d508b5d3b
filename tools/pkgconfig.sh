#!/usr/bin/env bash
# Writes isthmus.pc, by which C programs find the library, to the file given. Relative to the file itself, so that the
# folder may be moved.
#
#   tools/pkgconfig.sh FILE
set -euo pipefail
root=$(dirname "${BASH_SOURCE[0]}")/..
(($# == 1)) || {
    echo 'usage: tools/pkgconfig.sh FILE' >&2
    exit 2
}
version=$("$root/tools/version.sh")
mkdir -p "${1%/*}"
cat >"$1" <<END
prefix=\${pcfiledir}/../..
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: isthmus
Description: Devices, endpoints, connections, events, messages and remote memory between sites
Version: $version
Libs: -L\${libdir} -listhmus
Cflags: -I\${includedir}
END
