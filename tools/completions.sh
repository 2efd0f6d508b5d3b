#!/usr/bin/env bash
# Writes the completions of a built isthmus where bash, zsh and fish look for them:
#
#   tools/completions.sh ISTHMUS SHARE
#
# SHARE is the share folder of an installation.
set -euo pipefail
(($# == 2)) || {
    echo 'usage: tools/completions.sh ISTHMUS SHARE' >&2
    exit 2
}
put() { # put SHELL FILE
    mkdir -p "${2%/*}"
    "$isthmus" completions "$1" >"$2"
}
isthmus=$1
put bash "$2/bash-completion/completions/isthmus"
put zsh "$2/zsh/site-functions/_isthmus"
put fish "$2/fish/vendor_completions.d/isthmus.fish"
