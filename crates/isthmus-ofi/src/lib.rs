//! The libfabric provider `isthmus`: one thin file per libfabric object, one door for
//! panics and errors, nothing imported from libfabric. It exports `fi_prov_ini` only.

mod access;
mod atomic;
mod av;
mod call;
mod cm;
mod cntr;
mod collective;
mod convert;
mod counters;
mod cq;
mod domain;
mod door;
mod engine;
mod ep;
mod eq;
mod error;
mod fabric;
mod fid;
mod fork;
mod info;
mod joint;
mod live;
mod log;
mod mr;
mod msg;
mod options;
mod order;
mod peers;
mod poll;
mod provider;
mod resolve;
mod rma;
mod send;
mod tagged;
mod trigger;
mod wait;
mod waitobj;
mod waitset;

use isthmus_abi::{abi, flags};

pub use provider::fi_prov_ini;
