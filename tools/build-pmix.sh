#!/bin/sh
# Builds the PMIx server of isthmus run for Open MPI 5, build/bin/isthmus-pmix, against the libpmix that pkg-config knows
# (Debian: libpmix-dev).
set -eu
cd "$(dirname "$0")/.."
mkdir -p build/bin
# shellcheck disable=SC2046 # several words
${CC:-cc} -std=c11 -O2 -Wall -Wextra -Werror -o build/bin/isthmus-pmix.new pmix/isthmus-pmix.c $(pkg-config --cflags --libs pmix) -lpmix
mv build/bin/isthmus-pmix.new build/bin/isthmus-pmix
