//! The engine and the memory that it refers to, which the threads of an endpoint share behind one lock.

use std::time::Instant;

use isthmus_proto::{Engine, Micros};

use crate::memory::ProcessMemory;

/// The engine and the memory that it refers to.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) engine: Engine,
    pub(crate) memory: ProcessMemory,
    epoch: Instant,
}

impl Core {
    pub(crate) fn new(engine: Engine, memory: ProcessMemory) -> Self {
        Self { engine, memory, epoch: Instant::now() }
    }

    pub(crate) fn now(&self) -> Micros {
        self.epoch.elapsed().as_micros() as Micros
    }
}
