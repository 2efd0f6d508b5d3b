#!/usr/bin/env bash
# Prints the version of the sources, which stands in Cargo.toml alone.
sed -n 's/^version = "\(.*\)"$/\1/p' "$(dirname "${BASH_SOURCE[0]}")/../Cargo.toml" | head -n 1
