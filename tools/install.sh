#!/usr/bin/env bash
# Installs what tools/build.sh has put into build/, or takes it away again.
#
#   tools/install.sh [install|uninstall]
#
# PREFIX (/usr/local) is where it is to live, and DESTDIR (empty) goes before that: for
# packages. BUILD (build) is where it was built. Nothing is fetched or compiled.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

action=${1:-install}
prefix=${PREFIX:-/usr/local}
to=${DESTDIR:-}$prefix
build=${BUILD:-build}

die() {
    printf 'install: error: %s\n' "$*" >&2
    exit 1
}

[[ $prefix == /* ]] || die "PREFIX is '$prefix'; give an absolute path"

case $action in
    install)
        for part in bin/isthmus lib/libisthmus-fi.so lib/libisthmus.so include/isthmus.h lib/pkgconfig/isthmus.pc; do
            [[ -e $build/$part ]] || die "$build/$part is missing: run 'make build' first"
        done
        library=$(readlink "$build/lib/libisthmus.so")
        install -D -m 755 "$build/bin/isthmus" "$to/bin/isthmus"
        # `isthmus env` looks for the provider there.
        install -D -m 755 "$build/lib/libisthmus-fi.so" "$to/lib/isthmus/libisthmus-fi.so"
        install -D -m 755 "$build/lib/$library" "$to/lib/$library"
        ln -sfn "$library" "$to/lib/libisthmus.so"
        install -D -m 644 "$build/include/isthmus.h" "$to/include/isthmus.h"
        install -D -m 644 "$build/lib/pkgconfig/isthmus.pc" "$to/lib/pkgconfig/isthmus.pc"
        pages=$(mktemp -d)
        trap 'rm -rf "$pages"' EXIT
        "$build/bin/isthmus" man --out "$pages"
        for page in "$pages"/man?/*; do
            install -D -m 644 "$page" "$to/share/man/${page#"$pages"/}"
        done
        mkdir -p "$to/lib/systemd/system"
        sed "s|/usr/bin/isthmus|$prefix/bin/isthmus|" packaging/isthmus-router.service \
            >"$to/lib/systemd/system/isthmus-router.service"
        chmod 644 "$to/lib/systemd/system/isthmus-router.service"
        [[ -n ${DESTDIR:-} ]] || printf 'install: below %s; run ldconfig if C programs do not find the library\n' "$prefix"
        ;;
    uninstall)
        rm -f "$to/bin/isthmus" "$to/lib/isthmus/libisthmus-fi.so" "$to"/lib/libisthmus.so{,.[0-9]*} \
            "$to/include/isthmus.h" "$to/lib/pkgconfig/isthmus.pc" "$to"/share/man/man1/isthmus{,-*}.1 \
            "$to"/share/man/man3/isthmus{,_*}.3 "$to/lib/systemd/system/isthmus-router.service"
        rmdir "$to/lib/isthmus" 2>/dev/null || true
        ;;
    *) die "'$action' is neither install nor uninstall" ;;
esac
