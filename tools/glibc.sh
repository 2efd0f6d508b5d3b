#!/usr/bin/env bash
# Says which version of glibc programs and libraries need, and fails where it is newer than allowed.
#
#   tools/glibc.sh MOST FILE...    such as tools/glibc.sh 2.28 build/portable/bin/isthmus
set -euo pipefail
(($# >= 2)) || {
    echo 'usage: tools/glibc.sh MOST FILE...' >&2
    exit 2
}
most=$1
shift
status=0
for file; do
    # It reads files of every processor.
    symbols=$(readelf --wide --dyn-syms "$file") || exit 3
    needs=$(grep -o 'GLIBC_[0-9.]*' <<<"$symbols" | sort -uV | tail -n 1 || true)
    needs=${needs#GLIBC_}
    if [[ $(printf '%s\n' "${needs:-0}" "$most" | sort -V | tail -n 1) == "$most" ]]; then
        printf 'glibc: %s needs glibc %s\n' "$file" "${needs:-of no version}"
    else
        printf 'glibc: error: %s needs glibc %s, newer than %s, for these symbols:\n' "$file" "$needs" "$most" >&2
        grep -F "@GLIBC_$needs" <<<"$symbols" >&2
        status=1
    fi
done
exit $status
