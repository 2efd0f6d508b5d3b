# make help lists the targets and variables.

SHELL := /bin/bash
.DELETE_ON_ERROR:
.PHONY: help build wheel deb tarball packages install uninstall mpi collectives demo demo-routed demo-five check test fuzz soak soak-live sanitize lint suites versions bootstrap clean distclean

# Where tools/bootstrap.sh and rustup may have put cargo.
export PATH := $(HOME)/.cargo/bin:$(PATH)

# The demo's file (or the size of the one that is generated), link and ranks.
FILE ?=
SIZE ?= 500M
RATE ?= 1Gbit
RTT ?= 100ms
LOSS ?= 0.1%
MTU ?= 9000
RANKS ?= 4
BLOCK ?= 4MiB
# The MPI for which the mover and the collectives are built, and what its folder is called.
MPICC ?= mpicc
NAME ?= mpi
# Where make install puts things; DESTDIR goes before it, for packages.
PREFIX ?= /usr/local
DESTDIR ?=
# Where its libraries go: PREFIX/lib, or such as /usr/lib64.
LIBDIR ?=
# Modules of the simulations that take seconds.
SHORT_SIMULATIONS := acks:: buffered:: caps:: credit:: handshake:: hostile:: known:: latency:: leases:: scenarios:: sealed:: trickle::
# For each target of make fuzz.
FUZZ_SECONDS ?= 60
# The processor that the wheel or the tarball is for: this machine's, or aarch64.
ARCH ?= $(HOST)
HOST := $(shell uname -m)
# Set if that is another one. Rust's libraries for it are needed then, and an `isthmus` that runs here for manual pages:
# any will do, so the one that is compiled soonest.
FOREIGN = $(filter-out $(HOST),$(ARCH))
PORTABLE = tools/bootstrap.sh rust manylinux $(FOREIGN:%=rust-%) $(if $(FOREIGN),&& cargo build --locked -p isthmus)
FOR_ARCH = ARCH='$(ARCH)' $(if $(FOREIGN),RUNS='$(or $(CARGO_TARGET_DIR),target)/debug/isthmus')
# More for demo/run.py or pytest, such as ARGS="-m intel".
ARGS ?=

help:
	@printf '%s\n' \
	  'make demo    copy a file between two MPI applications at two sites of a lab' \
	  '             variables: FILE SIZE RATE RTT LOSS MTU RANKS BLOCK, and ARGS (demo/run.py --help)' \
	  'make demo-routed' \
	  '             the same between sites that only routers join, one of which is killed' \
	  'make demo-five' \
	  '             the same across fabric, LAN, WAN, LAN and fabric, with routers between them' \
	  'make check   what cargo alone can tell in minutes: formatting, clippy, unit tests, short simulations' \
  'make test    all tests: the Rust ones, every MPI over Isthmus (ARGS: what pytest takes),' \
	  '             and some of MPICH own' \
	  'make build   build/lib/libisthmus-fi.so (FI_PROVIDER_PATH), build/bin/isthmus, and for C' \
  '             programs build/include/isthmus.h and build/lib/libisthmus.so' \
	  'make mpi     the mover for programs of one MPI, into build/lib/mpi/NAME (docs/mover-mpi.md):' \
	  '             variables: MPICC=mpicc NAME=mpi' \
	  'make collectives' \
	  '             collectives that cross each wide link once, for programs of one MPI, into' \
	  '             build/lib/collectives/NAME (docs/collectives.md): the same variables' \
	  'make wheel   build/wheel/isthmus-*.whl, for pip, for glibc 2.28 and later: provider, command, C library,' \
  '             header, manual pages and Python binding (ARCH=aarch64: for that processor)' \
	  'make deb     build/deb/isthmus_*.deb, of what make build makes' \
	  'make tarball build/tarball/isthmus-*.tar.gz, for any folder of a system with glibc 2.28 or later (ARCH likewise)' \
	  'make packages' \
	  '             makes and tries all of these, also for aarch64, the RPM and the recipes in packaging/: an hour' \
	  'make install' \
	  '             puts what make build has made, manual pages and a unit for systemd below PREFIX' \
	  '             (/usr/local), or below DESTDIR for packages; make uninstall takes it away' \
	  'make soak-live' \
	  '             what has hung before, in loops beside load, over Isthmus and stock in turn' \
	  '             (ARGS: tools/soak-live.py --help)' \
	  'make soak    routers killed, stopped and cut off under a transfer of 2 GB' \
	  'make fuzz    looks for inputs that break a reader (FUZZ_SECONDS=60 for each target)' \
	  'make sanitize' \
	  '             the provider under valgrind, AddressSanitizer and ThreadSanitizer, and the library' \
	  '             for C under valgrind: minutes' \
	  '             (ARGS: memcheck, substrate, address, thread, miri)' \
	  'make lint    formatting, clippy, rustdoc, the crates of others (deny.toml), shellcheck, mypy' \
	  'make suites  what others wrote, over Isthmus and over stock tcp, side by side: libfabric' \
	  '             own tests, MPICH, mpi4py, NetPIPE, hpcc, IMB, OSU, ScaLAPACK: hours (ARGS: suites/run.py --help)' \
	  'make versions' \
	  '             the release of tools/release.env beside this build (suites/releases.py), and the provider in old' \
	  '             and new MPIs of PyPI and Debian: minutes (ARGS: suites/versions.py --help)' \
	  'make clean   what was built; distclean also takes the MPIs in build/mpi'

bootstrap:
	@tools/bootstrap.sh

build:
	@tools/bootstrap.sh compile
	@tools/build.sh

mpi: build
	@tools/build-mpi.sh '$(NAME)' $(MPICC)

# Only a C compiler's work: it needs nothing of make build.
collectives:
	@tools/build-collectives.sh '$(NAME)' $(MPICC)

wheel:
	@$(PORTABLE)
	@$(FOR_ARCH) tools/wheel.sh

deb: build
	@tools/bootstrap.sh packages
	@tools/deb.sh

tarball:
	@$(PORTABLE)
	@$(FOR_ARCH) tools/portable.sh
	@$(FOR_ARCH) tools/tarball.sh

packages: FOREIGN := $(filter-out $(HOST),aarch64)
packages:
	@tools/bootstrap.sh base rust python manylinux mpich packages recipes $(if $(FOREIGN),rust-aarch64 aarch64)
	@tools/build.sh
	@tools/wheel.sh
	@tests/packaging/wheel.py build/wheel/isthmus-*manylinux*_$$(uname -m).whl
	@tests/packaging/deb.py
	@tests/packaging/tarball.py
	@tests/packaging/rpm.py
	@tests/packaging/easybuild.py
	@tests/packaging/container.py
	@build/recipes/bin/pycodestyle --max-line-length=99 packaging/spack
	@$(if $(FOREIGN),ARCH=aarch64 tools/wheel.sh && ARCH=aarch64 tools/tarball.sh && \
	  tests/packaging/aarch64.py build/wheel/isthmus-*_aarch64.whl build/tarball/isthmus-*-aarch64-*.tar.gz)

install uninstall:
	@PREFIX='$(PREFIX)' LIBDIR='$(or $(LIBDIR),$(PREFIX)/lib)' DESTDIR='$(DESTDIR)' tools/install.sh $@

demo-routed: ROUTED := --routed
demo-five: ROUTED := --routed five
demo demo-routed demo-five:
	@tools/bootstrap.sh demo rust mpich
	@tools/build.sh
	@demo/run.py $(if $(FILE),--file '$(FILE)',--size '$(SIZE)') --rate '$(RATE)' --rtt '$(RTT)' \
	  --loss '$(LOSS)' --mtu '$(MTU)' --ranks '$(RANKS)' --block '$(BLOCK)' $(ROUTED) $(ARGS)

check:
	@tools/bootstrap.sh compile
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
	cargo test --workspace --lib --bins --locked --quiet
	cargo test --workspace --test simulation --locked --quiet -- $(SHORT_SIMULATIONS)

test:
	@tools/bootstrap.sh --rights
	@tools/bootstrap.sh base rust
	@tools/test.py $(ARGS)

soak:
	@tools/bootstrap.sh base rust python mpich
	@tools/build.sh
	@build/python/bin/pytest -m 'long and soak' $(ARGS)

soak-live:
	@tools/bootstrap.sh base rust mpich mpi4py-tests suites
	@tools/build.sh
	@tools/soak-live.py $(ARGS)

fuzz:
	@tools/bootstrap.sh rust fuzz
	@tools/fuzz.sh $(FUZZ_SECONDS)

sanitize:
	@tools/bootstrap.sh rust suites sanitize
	tools/sanitize.sh $(ARGS)

lint:
	@tools/bootstrap.sh rust python lint
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --locked --quiet
	tools/deny.sh
	shellcheck -x tools/*.sh packaging/container/isthmus-container .ci/run
	cd python && ../build/python/bin/mypy src tests $(patsubst %,../%,$(wildcard examples/python/*.py))

suites:
	@tools/bootstrap.sh
	@tools/build.sh
	@status=0; suites/run.py $(ARGS) || status=1; $(if $(ARGS),,suites/versions.py || status=1;) exit $$status

versions:
	@tools/bootstrap.sh
	@tools/build.sh
	@status=0; $(if $(ARGS),,suites/releases.py || status=1;) suites/versions.py $(ARGS) || status=1; exit $$status

clean:
	rm -rf build/lib build/bin build/include build/wheel build/tests build/demo build/logs
	cargo clean

distclean: clean
	rm -rf build
