#!/usr/bin/env bash
# The provider, and the library for C, in the C programs of their tests, under what finds faults of
# memory and threads.
#
#   tools/sanitize.sh              all of these
#   tools/sanitize.sh memcheck     valgrind: no error, nothing lost, and no more held after
#                                  many openings than after a few
#   tools/sanitize.sh substrate    valgrind: the library for C under programs that misuse it
#   tools/sanitize.sh address      AddressSanitizer and LeakSanitizer, library and programs
#   tools/sanitize.sh thread       ThreadSanitizer, the same, Rust's own library included
#   tools/sanitize.sh miri         Miri: the ring in shared memory, its pointers and races
#
# libfabric itself is the system's, as it is. The sanitizers need rustup: they are compiler
# options that have not been made stable. Built in build/sanitize.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=$PWD/build/sanitize
tests=crates/isthmus-ofi/tests
target=x86_64-unknown-linux-gnu
export FI_PROVIDER=isthmus
# Openings after which memory in use is compared. Bytes by which it may differ.
few=50 many=500 slack=1024
status=0

say() { printf 'sanitize: %s\n' "$*"; }

# Runs of the programs: those that end with everything closed, and those that do not.
whole=(provider objects claims orders corners collectives triggers datagrams sleepers closers 'lenders tcp' 'lenders udp' 'lenders memory'
    'threads 50' "lifecycle cycles $many" 'unload libfabric.so.1')
cut=('lifecycle exit' 'lifecycle _exit')

# programs NAME RUN... -- [WORD...]: each, with the words before it.
programs() {
    local name=$1 runs=() run words
    shift
    while [[ $1 != -- ]]; do runs+=("$1") && shift; done
    shift
    for run in "${runs[@]}"; do
        read -ra words <<<"$run"
        judged "$name" "$run" "$@" "$out/$name/${words[0]}" "${words[@]:1}"
    done
}

# judged NAME RUN COMMAND...: it ends well, or the log is shown.
judged() {
    local name=$1 run=$2 log
    log=$out/$1/${2// /-}.log
    shift 2
    if timeout --signal=KILL 600 "$@" >"$log" 2>&1; then
        say "$name: $run: nothing found"
    else
        say "$name: $run: exit $?; see $log"
        grep -E 'ERROR|WARNING: |line [0-9]+:|lost:' "$log" | head -n 20 || tail -n 20 "$log"
        status=1
    fi
}

# compiled NAME [FLAG...] -- [LINK...]: the C programs in build/sanitize/NAME, beside the library.
compiled() {
    local folder=$out/$1 program flags=()
    shift
    while [[ $1 != -- ]]; do flags+=("$1") && shift; done
    shift
    export FI_PROVIDER_PATH=$folder
    for program in provider objects claims orders corners collectives triggers datagrams sleepers closers lenders threads lifecycle unload; do
        gcc -g -O1 -Wall -Wno-deprecated-declarations -pthread "${flags[@]}" -c -o "$folder/$program.o" "$tests/$program.c"
        gcc -pthread -o "$folder/$program" "$folder/$program.o" "$@" -Wl,--as-needed -lfabric -ldl -lm -lrt
    done
}

memcheck() {
    mkdir -p "$out/memcheck"
    cargo build --locked -p isthmus-ofi
    cp "${CARGO_TARGET_DIR:-target}/debug/libisthmus_fi.so" "$out/memcheck/libisthmus-fi.so"
    compiled memcheck --
    local valgrind=(valgrind --error-exitcode=9 --child-silent-after-fork=yes --fair-sched=yes --num-callers=30)
    # A forked child has not the threads on whose stacks things lie, so leaks are read from the
    # log, in which it has no part.
    local leaks=(--leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=none) run
    programs memcheck "${whole[@]}" "lifecycle cycles $few" -- "${valgrind[@]}" "${leaks[@]}"
    programs memcheck "${cut[@]}" -- "${valgrind[@]}"
    for run in "${whole[@]}"; do
        if ! grep -E 'definitely lost: 0 bytes|no leaks are possible' "$out/memcheck/${run// /-}.log" >/dev/null; then
            say "memcheck: $run: something is lost; see its log"
            status=1
        fi
    done
    local after_few after_many
    after_few=$(in_use "$few") after_many=$(in_use "$many")
    say "memcheck: in use at exit after $few openings $after_few bytes, after $many $after_many"
    ((after_many <= after_few + slack)) || status=1
}

# What is still reachable after so many openings. Bytes.
in_use() { sed -n 's/.*in use at exit: \([0-9,]*\) bytes.*/\1/p' "$out/memcheck/lifecycle-cycles-$1.log" | tr -d ,; }

# The library for C, under programs that do whatever they should not.
substrate() {
    local folder=$out/substrate program
    mkdir -p "$folder"
    cargo build --locked -p isthmus-c
    cp "${CARGO_TARGET_DIR:-target}/debug/libisthmus_c.so" "$folder/libisthmus.so.0"
    for program in misuse hostile; do
        gcc -std=c11 -D_GNU_SOURCE -g -O1 -Wall -pthread -Iinclude -o "$folder/$program" \
            "crates/isthmus-c/tests/$program.c" "$folder/libisthmus.so.0" "-Wl,-rpath,$folder"
    done
    printf '[device]\ninterface = "127.0.0.1"\nlinger = "200ms"\n' >"$folder/isthmus.toml"
    export ISTHMUS_CONFIG=$folder/isthmus.toml
    programs substrate misuse 'hostile 5' -- valgrind --error-exitcode=9 --fair-sched=yes --num-callers=30 \
        --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite
}

# sanitized NAME LETTERS: the library, all of Rust included, and the programs, on the sanitizer's
# runtime that comes with the compiler: a program that loads a library must bring it.
sanitized() {
    local name=$1 runtime
    command -v rustup >/dev/null || {
        say "$name: not run: needs rustup, for the source of Rust's own library"
        return 0
    }
    rustup component list --installed | grep '^rust-src' >/dev/null || rustup component add rust-src
    runtime=$(rustc --print target-libdir)
    runtime=$(find "$runtime" -name "librustc*_rt.$2.a" | head -n 1)
    mkdir -p "$out/$name"
    RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=$name" CARGO_TARGET_DIR=$out/target-$name \
        cargo build -Zbuild-std --target "$target" --locked -p isthmus-ofi
    cp "$out/target-$name/$target/debug/libisthmus_fi.so" "$out/$name/libisthmus-fi.so"
    # The library was built as meant, and the runtime sees what it is there to see.
    nm -D "$out/$name/libisthmus-fi.so" | grep "__${2}_" >/dev/null || {
        say "$name: the library is not instrumented"
        exit 1
    }
    compiled "$name" "-fsanitize=$name" -- -rdynamic -Wl,--whole-archive "$runtime" -Wl,--no-whole-archive
    printf '%s\n' '#include <pthread.h>' '#include <stdlib.h>' 'char *p;' \
        'static void *f(void *a) { for (int i = 0; i < 10000; i++) p[0]++; return a; }' \
        'int main(void) { pthread_t t; p = malloc(1); pthread_create(&t, 0, f, 0); f(0);' \
        'pthread_join(t, 0); free(p); return p[0]; }' >"$out/$name/fault.c"
    gcc -g -w "-fsanitize=$name" -pthread -c -o "$out/$name/fault.o" "$out/$name/fault.c"
    gcc -pthread -o "$out/$name/fault" "$out/$name/fault.o" -rdynamic \
        -Wl,--whole-archive "$runtime" -Wl,--no-whole-archive -ldl -lm -lrt
    if "$out/$name/fault" >"$out/$name/fault.log" 2>&1 || ! grep -q Sanitizer "$out/$name/fault.log"; then
        say "$name: a fault on purpose is not found"
        exit 1
    fi
    programs "$name" "${whole[@]}" 'lifecycle descriptors' "${cut[@]}" --
}

# The ring's tests, interpreted. Weak memory is not emulated: Miri ends itself where memory is written both by atomic
# operations and by others, one after the other (its weak_memory.rs, nightly of May 2026). Races are found all the same.
miri() {
    command -v rustup >/dev/null || {
        say 'miri: not run: needs rustup, for a nightly compiler'
        return 0
    }
    cargo +nightly miri --version >/dev/null 2>&1 ||
        rustup toolchain install nightly --profile minimal --component miri --component rust-src
    mkdir -p "$out/miri"
    MIRIFLAGS=-Zmiri-disable-weak-memory-emulation CARGO_TARGET_DIR=$out/target-miri \
        judged miri ring cargo +nightly miri test --locked -p isthmus-io --lib carrier::memory::ring
}

mkdir -p "$out"
(($#)) || set -- memcheck substrate address thread miri
for part; do
    case $part in
        memcheck) memcheck ;;
        miri) miri ;;
        substrate) substrate ;;
        address) ASAN_OPTIONS=detect_leaks=1 sanitized address asan ;;
        thread) TSAN_OPTIONS=second_deadlock_stack=1 sanitized thread tsan ;;
        *) say "no part \"$part\": memcheck, substrate, address or thread" && exit 2 ;;
    esac
done
exit $status
