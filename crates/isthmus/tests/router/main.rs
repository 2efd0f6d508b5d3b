//! `isthmus router` as its neighbours see it: real processes and sockets on loopback.

mod fairness;
mod harness;
mod hostile;
mod operation;
mod plain;
mod site;
mod wan;
