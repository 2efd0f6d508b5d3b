#!/usr/bin/env bash
# Installs what tools/build.sh has put into build/, or takes it away again.
#
#   tools/install.sh [install|uninstall]
#
# PREFIX (/usr/local) is where it is to live, LIBDIR (PREFIX/lib) where its libraries do, such as /usr/lib64; DESTDIR
# (empty) goes before both: for packages. STRIP (strip) takes debugging symbols away; empty keeps them. BUILD (build) is
# where it was built. RUNS (BUILD/bin/isthmus) writes manual pages and completions: a command for the processor of this
# machine. Nothing is fetched or compiled.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

action=${1:-install}
prefix=${PREFIX:-/usr/local}
to=${DESTDIR:-}$prefix
build=${BUILD:-build}
runs=${RUNS:-$build/bin/isthmus}

die() {
    printf 'install: error: %s\n' "$*" >&2
    exit 1
}

[[ $prefix == /* ]] || die "PREFIX is '$prefix'; give an absolute path"

libdir=${LIBDIR:-$prefix/lib}
[[ $libdir == /* ]] || die "LIBDIR is '$libdir'; give an absolute path"
tolib=${DESTDIR:-}$libdir

# put MODE FILE TO. Libraries and programs lose what only a debugger reads, unless STRIP is empty.
put() {
    install -D -m "$1" "$2" "$3"
    [[ $1 != 755 || -z $strip ]] || "$strip" --strip-unneeded "$3" 2>/dev/null || true
}
strip=${STRIP-strip}
command -v "${strip:-true}" >/dev/null || strip=''

# The mover for each MPI that `make mpi` was run for, where `isthmus-mpi.pc` finds it.
put_mpi() {
    local from name to
    for from in "$build"/lib/mpi/*/; do
        [[ -e $from/libisthmus-mpi.so.1 ]] || continue
        name=$(basename "$from")
        to=$tolib/mpi/$name
        put 755 "$from/libisthmus-mpi.so.1" "$to/libisthmus-mpi.so.1"
        ln -sfn libisthmus-mpi.so.1 "$to/libisthmus-mpi.so"
        put 644 mpi/isthmus_mpi.py "$to/isthmus_mpi.py"
        mkdir -p "$to/pkgconfig"
        sed "s|^prefix=.*|prefix=$prefix|" "$from/pkgconfig/isthmus-mpi.pc" >"$to/pkgconfig/isthmus-mpi.pc"
    done
}

# The collectives for each MPI that `make collectives` was run for, where `isthmus env --collectives` looks.
put_collectives() {
    local from
    for from in "$build"/lib/collectives/*/libisthmus-collectives.so; do
        [[ -e $from ]] || continue
        put 755 "$from" "$tolib/isthmus/collectives/$(basename "$(dirname "$from")")/libisthmus-collectives.so"
    done
}

install_all() {
    local part library page file commit
    for part in bin/isthmus lib/libisthmus-fi.so lib/libisthmus.so include/isthmus.h lib/pkgconfig/isthmus.pc; do
        [[ -e $build/$part ]] || die "$build/$part is missing: run 'make build' first"
    done
    library=$(readlink "$build/lib/libisthmus.so")
    put 755 "$build/bin/isthmus" "$to/bin/isthmus"
    # For launchers: mpiexec -n 4 isthmus-cp ...
    ln -sfn isthmus "$to/bin/isthmus-cp"
    # `isthmus env` looks for the provider there.
    put 755 "$build/lib/libisthmus-fi.so" "$tolib/isthmus/libisthmus-fi.so"
    put 755 "$build/lib/$library" "$tolib/$library"
    ln -sfn "$library" "$tolib/libisthmus.so"
    put 644 "$build/include/isthmus.h" "$to/include/isthmus.h"
    mkdir -p "$tolib/pkgconfig"
    sed -e "s|^prefix=.*|prefix=$prefix|" -e "s|^libdir=.*|libdir=$libdir|" "$build/lib/pkgconfig/isthmus.pc" \
        >"$tolib/pkgconfig/isthmus.pc"
    chmod 644 "$tolib/pkgconfig/isthmus.pc"
    pages=$(mktemp -d)
    trap 'rm -rf "$pages"' EXIT
    "$runs" man --out "$pages"
    for page in "$pages"/man?/*; do
        put 644 "$page" "$to/share/man/${page#"$pages"/}"
    done
    tools/completions.sh "$runs" "$to/share"
    # For programs of MPIs that this installation does not know: the mover is compiled with each one's mpicc.
    for file in include/isthmus-mpi.h mpi/isthmus_mpi.f90; do
        put 644 "$file" "$to/include/${file##*/}"
    done
    for file in mpi/*.[ch]; do
        put 644 "$file" "$to/share/isthmus/mpi/${file##*/}"
    done
    put_mpi
    put_collectives
    put 644 LICENSE "$to/share/doc/isthmus/LICENSE"
    put 644 README.md "$to/share/doc/isthmus/README.md"
    put 644 CHANGELOG.md "$to/share/doc/isthmus/CHANGELOG.md"
    # What packages have to say: tools/licences.py.
    [[ ! -e $build/THIRD-PARTY ]] || put 644 "$build/THIRD-PARTY" "$to/share/doc/isthmus/THIRD-PARTY"
    # Which sources these are, where git knows.
    if commit=$(git describe --always --abbrev=40 --dirty --exclude '*' 2>/dev/null); then
        put 644 /dev/stdin "$to/share/doc/isthmus/COMMIT" <<<"$commit $(git log -1 --format=%cs)"
    fi
    mkdir -p "$to/lib/systemd/system" "$to/share/modulefiles/isthmus"
    # Of the daemons; none is enabled.
    for file in isthmus-router isthmus-serve; do
        sed "s|/usr/bin/isthmus|$prefix/bin/isthmus|" "packaging/$file.service" >"$to/lib/systemd/system/$file.service"
    done
    put 644 packaging/isthmus.sysusers "$to/lib/sysusers.d/isthmus.conf"
    put 644 packaging/isthmus.tmpfiles "$to/lib/tmpfiles.d/isthmus.conf"
    sed -e "s|@PREFIX@|$prefix|" -e "s|@LIBDIR@|$libdir|" -e "s|@VERSION@|$version|" packaging/isthmus.lua \
        >"$to/share/modulefiles/isthmus/$version.lua"
    chmod 644 "$to"/lib/systemd/system/isthmus-*.service "$to/share/modulefiles/isthmus/$version.lua"
    [[ -n ${DESTDIR:-} ]] || printf 'install: below %s; run ldconfig if C programs do not find the library\n' "$prefix"
}

uninstall_all() {
    local folder
    rm -f "$to"/bin/isthmus{,-cp} "$tolib/isthmus/libisthmus-fi.so" "$tolib"/libisthmus.so{,.[0-9]*} \
        "$to"/include/isthmus{,-mpi}.h "$to/include/isthmus_mpi.f90" "$tolib/pkgconfig/isthmus.pc" \
        "$to"/share/man/man1/isthmus{,-*}.1 "$to"/share/man/man3/isthmus{,_*}.3 \
        "$to"/lib/systemd/system/isthmus-{router,serve}.service "$to"/lib/{sysusers,tmpfiles}.d/isthmus.conf \
        "$to"/share/modulefiles/isthmus/*.lua \
        "$to/share/bash-completion/completions/isthmus" "$to/share/zsh/site-functions/_isthmus" \
        "$to/share/fish/vendor_completions.d/isthmus.fish"
    rm -rf "$to/share/isthmus" "$to/share/doc/isthmus"
    for folder in "$tolib"/mpi/*/; do
        rm -f "$folder"/libisthmus-mpi.so{,.1} "$folder/isthmus_mpi.py" "$folder/pkgconfig/isthmus-mpi.pc"
        rmdir "$folder/pkgconfig" "$folder" 2>/dev/null || true
    done
    rm -f "$tolib"/isthmus/collectives/*/libisthmus-collectives.so
    for folder in "$tolib"/isthmus/collectives/*/ "$tolib/isthmus/collectives"; do
        rmdir "$folder" 2>/dev/null || true
    done
    # Only those that nobody else uses.
    rmdir "$tolib/isthmus" "$tolib/mpi" "$to/share/modulefiles/isthmus" 2>/dev/null || true
}

version=$(tools/version.sh)
case $action in
    install) install_all ;;
    uninstall) uninstall_all ;;
    *) die "'$action' is neither install nor uninstall" ;;
esac
