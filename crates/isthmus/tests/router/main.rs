//! `isthmus router` as its neighbours see it: real processes and sockets on loopback.

mod coupled;
mod fabric;
mod fairness;
mod harness;
mod hostile;
mod names;
#[path = "../support/openmetrics.rs"]
mod openmetrics;
mod operation;
mod plain;
mod site;
#[path = "../support/strangers.rs"]
mod strangers;
mod substrate;
#[path = "../../../isthmus-io/tests/support/mod.rs"]
mod support;
mod wan;
