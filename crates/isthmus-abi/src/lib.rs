//! libfabric's public C ABI: what the provider fills and what clients of it use. Declarations
//! only: nothing is linked or loaded here.

pub mod abi;
pub mod collective;
pub mod flags;
pub mod trigger;
