#!/usr/bin/env bash
# Builds the mover for MPI programs with the compiler of one MPI:
#
#   tools/build-mpi.sh NAME MPICC [FLAGS...]
#
# into build/lib/mpi/NAME: libisthmus-mpi.so, its pkg-config file, and what Fortran and
# Python programs use. Programs are linked by the same MPICC:
#
#   export PKG_CONFIG_PATH=build/lib/mpi/NAME/pkgconfig
#   mpicc program.c $(pkg-config --cflags --libs isthmus-mpi)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

(($# >= 2)) || {
    echo 'usage: tools/build-mpi.sh NAME MPICC [FLAGS...]' >&2
    exit 2
}
name=$1
shift
folder=build/lib/mpi/$name
library=$folder/libisthmus-mpi.so
[[ -e build/lib/libisthmus.so ]] || {
    echo 'build-mpi: error: no build/lib/libisthmus.so: make build' >&2
    exit 3
}
mkdir -p "$folder/pkgconfig" build/include

# Two at once (tests and a demo, say) must not write the same files.
exec 9>"$folder/.lock"
flock 9

for file in include/isthmus-mpi.h mpi/isthmus_mpi.f90; do
    cmp -s "$file" "build/include/${file##*/}" || cp "$file" "build/include/${file##*/}"
done
cmp -s mpi/isthmus_mpi.py "$folder/isthmus_mpi.py" || cp mpi/isthmus_mpi.py "$folder/isthmus_mpi.py"

stamp=$folder/.built
wanted=$(cat "$0" include/isthmus-mpi.h include/isthmus.h mpi/*.[ch] | sha256sum; echo "$*")
if [[ ! -e $library || ! -e $stamp || $(<"$stamp") != "$wanted" ]]; then
    # $ORIGIN is the loader's: the tree may be moved.
    "$@" -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -fPIC -fvisibility=hidden -pthread -Iinclude \
        -shared -Wl,--no-undefined -Wl,-soname,libisthmus-mpi.so.1 -o "$library.new" mpi/*.c \
        -Lbuild/lib -listhmus "-Wl,-rpath,\$ORIGIN/../.."
    mv "$library.new" "$library.1"
    ln -sfn libisthmus-mpi.so.1 "$library"
    printf '%s' "$wanted" >"$stamp"
fi
version=$(tools/version.sh)
cat >"$folder/pkgconfig/isthmus-mpi.pc" <<END
prefix=\${pcfiledir}/../../../..
libdir=\${pcfiledir}/..
includedir=\${prefix}/include

Name: isthmus-mpi
Description: Files and arrays from one running MPI application to another
Version: $version
Libs: -L\${libdir} -listhmus-mpi -Wl,-rpath,\${libdir} -Wl,-rpath-link,\${prefix}/lib
Cflags: -I\${includedir}
END
