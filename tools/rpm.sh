#!/usr/bin/env bash
# Packs what tools/portable.sh has made as an RPM, for distributions with glibc 2.28 or later:
# build/rpm/isthmus-VERSION-1.ARCH.rpm.
#
#   tools/rpm.sh
#
# packaging/isthmus.spec says what is in it. rpmlint says what is wrong with it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

for command in rpmbuild rpmlint; do
    command -v "$command" >/dev/null || {
        printf 'rpm: error: %s is missing: run "tools/bootstrap.sh recipes" first\n' "$command" >&2
        exit 1
    }
done
version=$(tools/version.sh)
rm -rf build/rpm
mkdir -p build/rpm
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
sed -e "s/@VERSION@/$version/" -e "s/@DATE@/$(LC_ALL=C date -ud "@$SOURCE_DATE_EPOCH" '+%a %b %d %Y')/" packaging/isthmus.spec >build/rpm/isthmus.spec
# Where RPM's distributions have libraries, which Debian's rpmbuild does not know.
BUILD=$PWD/build/portable rpmbuild --quiet -bb --with built --define "source $PWD" --define "_topdir $PWD/build/rpm/work" \
    --define "_rpmdir $PWD/build/rpm" --define '_rpmfilename %{name}-%{version}-%{release}.%{_arch}.rpm' \
    --define '_libdir %{_prefix}/lib64' --define '__os_install_post %{nil}' \
    --define "_dbpath $PWD/build/rpm/work/db" build/rpm/isthmus.spec
# It ends well with warnings, which count here as well.
said=$(rpmlint --config packaging/rpmlint.toml build/rpm/isthmus.spec build/rpm/isthmus-*.rpm) || true
printf '%s\n' "$said"
[[ $said == *' 0 errors, 0 warnings'* ]] || exit 1
ls -l build/rpm/*.rpm
