#!/usr/bin/env bash
# Builds the collectives library with the compiler of one MPI:
#
#   tools/build-collectives.sh NAME MPICC [FLAGS...]
#
# into build/lib/collectives/NAME/libisthmus-collectives.so. Programs of that MPI load it by LD_PRELOAD
# (docs/collectives.md).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

(($# >= 2)) || {
    echo 'usage: tools/build-collectives.sh NAME MPICC [FLAGS...]' >&2
    exit 2
}
name=$1
shift
folder=build/lib/collectives/$name
library=$folder/libisthmus-collectives.so
mkdir -p "$folder"

# Two at once (tests and a measurement, say) must not write the same files.
exec 9>"$folder/.lock"
flock 9

stamp=$folder/.built
wanted=$(cat "$0" collectives/*.[ch] | sha256sum; echo "$*")
if [[ ! -e $library || ! -e $stamp || $(<"$stamp") != "$wanted" ]]; then
    "$@" -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -fPIC -fvisibility=hidden -pthread \
        -shared -Wl,--no-undefined -Wl,-soname,libisthmus-collectives.so -o "$library.new" collectives/*.c -ldl
    mv "$library.new" "$library"
    printf '%s' "$wanted" >"$stamp"
fi
