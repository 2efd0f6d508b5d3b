//! Fuzz targets for every parser of bytes or text from outside.
//!
//! A [`Target`] is a property of a reader that must hold for any input. The same targets run
//! in two ways. `cargo test` replays the corpora beside this crate, and inputs that a seeded
//! [`mutate::Mutator`] makes from them: the same ones every time, in seconds, with the stable
//! toolchain. `make fuzz` builds them with coverage counters for LLVM's libFuzzer, which finds
//! new inputs and adds them to the corpora.
//!
//! Every target also bounds the memory that an input of a given length may cost.
#![forbid(unsafe_code)]

mod address;
/// The simulation's memory, which checks every access.
#[path = "../../isthmus-proto/tests/simulation/arena.rs"]
#[allow(dead_code, reason = "the simulation asks more of it")]
mod arena;
/// Feeds bytes to a link; shared with the tests of `isthmus-mux`.
#[path = "../../isthmus-mux/tests/bytes/mod.rs"]
mod bytes;
mod calls;
mod conversation;
mod engine;
mod ethernet;
mod frame;
mod hello;
mod link;
mod meeting;
mod mover;
pub mod mutate;
/// A program that makes any calls; shared with the tests of the substrate.
#[allow(unreachable_pub, reason = "a test of the substrate includes it too")]
#[path = "../../isthmus-substrate/tests/support/player.rs"]
mod player;
mod pmi;
mod ring;
mod texts;
mod udp;

use std::fs;
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// A parser, and the property that must hold for any input.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, and that of its corpus.
    pub name: &'static str,
    /// A description for people.
    pub about: &'static str,
    /// Well-formed inputs, from which fuzzing starts.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Panics if the property does not hold.
    property: fn(&[u8]),
    /// Most memory allocated at once, without the input: a fixed part, and a part for each
    /// byte of the input. Bytes.
    memory_max: (usize, usize),
    /// Inputs that `cargo test` makes. Count.
    pub mutations: usize,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "pmi",
        about: "what ranks say to isthmus run",
        seeds: pmi::seeds,
        property: pmi::property,
        memory_max: (1 << 16, 32),
        mutations: 30_000,
    },
    Target {
        name: "frame",
        about: "the decoder of frames",
        seeds: frame::seeds,
        property: frame::property,
        memory_max: (1 << 16, 0),
        mutations: 100_000,
    },
    Target {
        name: "address",
        about: "addresses as bytes and as text",
        seeds: address::seeds,
        property: address::property,
        memory_max: (1 << 16, 8),
        mutations: 100_000,
    },
    Target {
        name: "conversation",
        about: "what endpoints of the substrate tell each other",
        seeds: conversation::seeds,
        property: conversation::property,
        memory_max: (1 << 16, 8),
        mutations: 100_000,
    },
    Target {
        name: "map",
        about: "the route map, and what is computed from it",
        seeds: texts::map_seeds,
        property: texts::map,
        memory_max: (1 << 20, 1000),
        mutations: 2_000,
    },
    Target {
        name: "measured",
        about: "measurements of a map's links",
        seeds: texts::measured_seeds,
        property: texts::measured,
        memory_max: (1 << 16, 1000),
        mutations: 5_000,
    },
    Target {
        name: "router-config",
        about: "the router's configuration",
        seeds: texts::router_config_seeds,
        property: texts::router_config,
        memory_max: (1 << 16, 1000),
        mutations: 5_000,
    },
    Target {
        name: "hello",
        about: "a router's first look at a lane, in pieces",
        seeds: hello::seeds,
        property: hello::property,
        memory_max: (1 << 16, 0),
        mutations: 20_000,
    },
    Target {
        name: "link",
        about: "one end of a link that is told any frames while its lanes are used",
        seeds: link::seeds,
        property: link::property,
        memory_max: (4 << 20, 0),
        mutations: 20_000,
    },
    Target {
        name: "engine",
        about: "lanes of one peer that carry any bytes in any pieces, and break",
        seeds: engine::seeds,
        property: engine::property,
        memory_max: (16 << 20, 0),
        mutations: 5_000,
    },
    Target {
        name: "mover",
        about: "what the other side of a file transfer says, and journals that crashes left",
        seeds: mover::seeds,
        property: mover::property,
        memory_max: (4 << 20, 100),
        mutations: 50_000,
    },
    Target {
        name: "udp",
        about: "packets at a UDP port, sealed and not, before and after its keys have changed",
        seeds: udp::seeds,
        property: udp::property,
        memory_max: (16 << 20, 0),
        mutations: 5_000,
    },
    Target {
        name: "meeting",
        about: "the offer of fabrics before a lane's first frame, and its answer",
        seeds: meeting::seeds,
        property: meeting::property,
        memory_max: (1 << 16, 16),
        mutations: 5_000,
    },
    Target {
        name: "ethernet",
        about: "Ethernet frames",
        seeds: ethernet::seeds,
        property: ethernet::property,
        memory_max: (1 << 16, 8),
        mutations: 50_000,
    },
    Target {
        name: "ring",
        about: "the ring of a lane in shared memory, whatever the other process writes there",
        seeds: ring::seeds,
        property: ring::property,
        memory_max: (1 << 18, 8),
        mutations: 20_000,
    },
    Target {
        name: "calls",
        about: "calls of the substrate in any order with any names, over real sockets",
        seeds: calls::seeds,
        property: calls::property,
        memory_max: (64 << 20, 100_000),
        mutations: 40,
    },
];

impl Target {
    /// The target with this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }

    fn path(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("corpora").join(self.name).with_extension("hex")
    }

    /// The inputs that fuzzing has found; `corpora/NAME.hex` has one on each line.
    ///
    /// # Errors
    /// Text: the file cannot be read, or a line of it is not hexadecimal.
    pub fn corpus(&self) -> Result<Vec<Vec<u8>>, String> {
        let path = self.path();
        let text =
            fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let line = |(number, line): (usize, &str)| {
            let fault = |error| format!("{}:{}: {error}", path.display(), number + 1);
            HEXLOWER.decode(line.as_bytes()).map_err(fault)
        };
        text.lines().enumerate().map(line).collect()
    }

    /// Makes these the corpus.
    ///
    /// # Errors
    /// Text: the file cannot be written.
    pub fn keep(&self, inputs: &[Vec<u8>]) -> Result<(), String> {
        let path = self.path();
        let lines: String = inputs.iter().map(|input| HEXLOWER.encode(input) + "\n").collect();
        fs::write(&path, lines).map_err(|error| format!("cannot write {}: {error}", path.display()))
    }

    /// Panics if the property does not hold for `input`, or if it costs too much memory. Memory
    /// is counted for the whole process, so nothing else may run in it at the same time.
    pub fn check(&self, input: &[u8]) {
        let before = ALLOCATOR.current_usage();
        ALLOCATOR.reset_peak_usage();
        (self.property)(input);
        let cost = ALLOCATOR.peak_usage().saturating_sub(before);
        let most = self.memory_max.0 + self.memory_max.1 * input.len();
        assert!(cost <= most, "{} bytes of input cost {cost} bytes of memory, more than {most}", input.len());
    }
}
