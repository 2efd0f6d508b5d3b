#!/usr/bin/env bash
# Checks the crates of others by deny.toml: licences, duplicates, sources, and known holes by RustSec's
# database. Where that cannot be fetched and none is there, it says so and checks the rest.
#
# CARGO_DENY is the program; `tools/bootstrap.sh lint` installs it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
deny=${CARGO_DENY:-build/cargo-deny/bin/cargo-deny}

checks=(licenses bans sources)
if words=$("$deny" fetch db 2>&1); then
    checks+=(advisories)
elif "$deny" --offline check advisories >/dev/null 2>&1; then
    printf "deny: RustSec's database cannot be fetched; the one that is here may be old\n" >&2
    checks+=(advisories)
else
    printf "deny: advisories are not checked: RustSec's database cannot be fetched (%s)\n" \
        "$(grep -m 1 -E 'fatal|error' <<<"$words" || echo 'no reason given')" >&2
fi
exec "$deny" --log-level error --offline check --hide-inclusion-graph "${checks[@]}"
