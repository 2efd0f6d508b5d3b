#!/usr/bin/env bash
# Looks for inputs that break a reader of foreign bytes or texts: libFuzzer drives the
# targets of crates/isthmus-fuzz, guided by coverage, with the project's own toolchain.
#
#   tools/fuzz.sh [SECONDS [TARGET...]]      60 seconds for each target unless told
#
# Inputs that reach new code are added to the corpora (crates/isthmus-fuzz/corpora/TARGET.hex), which `cargo test`
# replays. Inputs leave them whose code fewer or shorter ones reach, and the longest where there are many.
# All that were found, and what libFuzzer says, are in build/fuzz, as is an input that breaks
# a target; the exit status is 1 then. tools/bootstrap.sh fuzz installs what this needs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${1:-60}
shift $(($# > 0 ? 1 : 0))
work=build/fuzz
host=$(rustc -vV | awk '/^host:/{print $2}')
target_dir=${CARGO_TARGET_DIR:-target}

cargo build --locked -p isthmus-fuzz
tool=$target_dir/debug/isthmus-fuzz
# Counters for every edge, and the operands of comparisons: what libFuzzer steers by.
coverage='--cfg fuzzing -Cdebug-assertions=yes -Cpasses=sancov-module
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares'
RUSTFLAGS=$coverage CARGO_PROFILE_RELEASE_LTO=off \
    cargo build --release --locked -p isthmus-fuzz --target "$host" --target-dir "$target_dir/fuzz"
fuzzer=$target_dir/fuzz/$host/release/isthmus-fuzz

targets=("$@")
((${#targets[@]})) || mapfile -t targets < <("$tool" | awk '{print $1}')
status=0
for target in "${targets[@]}"; do
    export ISTHMUS_FUZZ_TARGET=$target
    grown=$work/$target merged=$work/$target.merged
    mkdir -p "$grown"
    "$tool" unpack "$target" "$grown"
    printf 'fuzz: %s for %s s\n' "$target" "$seconds"
    limits=(-max_len=4096 -timeout=10 -rss_limit_mb=2048)
    if ! "$fuzzer" "${limits[@]}" -max_total_time="$seconds" -use_value_profile=1 -print_final_stats=1 \
        -artifact_prefix="$work/$target." "$grown" &>"$work/$target.log"; then
        tail -n 40 "$work/$target.log" >&2
        printf 'fuzz: %s is broken by an input in %s\n' "$target" "$work" >&2
        status=1
    fi
    grep -a 'number_of_executed_units' "$work/$target.log" || true
    # By edges alone: how often each was passed would keep ten times as many.
    rm -rf "$merged"
    mkdir "$merged"
    "$fuzzer" "${limits[@]}" -merge=1 -use_counters=0 "$merged" "$grown" &>>"$work/$target.log"
    "$tool" pack "$target" "$merged"
done
exit "$status"
