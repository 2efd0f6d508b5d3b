//! The fabrics of one process, in the user's order of preference.

use std::collections::HashSet;
use std::fmt::Arguments;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::OfferedEndpoint;
use crate::fabrics::Taken;
use crate::hub::{Hub, News, Piped};
use crate::{FabricError, host};

/// Most different remarks that are logged. Count.
const REMARKS_MAX: usize = 64;

/// Identifies a lane over a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipe {
    hub: usize,
    token: u64,
}

/// All fabrics of the process. Endpoints are opened when the first lane could use them.
#[derive(Debug)]
pub struct Hubs {
    wanted: Vec<String>,
    node: IpAddr,
    hubs: Option<Vec<Hub>>,
    host: Option<u64>,
    log: fn(Arguments<'_>),
    said: HashSet<String>,
}

impl Hubs {
    /// `wanted` lists providers, best first, separated by commas. "" and "off" mean none. `node` is
    /// our address, for providers that use addresses. `log` gets remarks on why a lane does not use
    /// a fabric, each once.
    pub fn new(wanted: &str, node: IpAddr, log: fn(Arguments<'_>)) -> Self {
        let wanted = wanted.split(',').map(str::trim).filter(|name| !name.is_empty() && *name != "off");
        let wanted = wanted.map(str::to_owned).collect();
        Self { wanted, node, hubs: None, host: None, log, said: HashSet::new() }
    }

    /// Whether the user wants no fabrics.
    pub fn is_off(&self) -> bool {
        self.wanted.is_empty()
    }

    /// Whether no fabric has a lane.
    pub fn is_idle(&self) -> bool {
        self.hubs.as_ref().is_none_or(|hubs| hubs.iter().all(|hub| hub.lanes() == 0))
    }

    /// A number that processes have in common if they may share memory.
    pub(crate) fn host(&mut self) -> u64 {
        *self.host.get_or_insert_with(host::identity)
    }

    pub(crate) fn remark(&mut self, what: Arguments<'_>) {
        let text = what.to_string();
        if self.said.len() < REMARKS_MAX && self.said.insert(text) {
            (self.log)(what);
        }
    }

    fn open(&mut self) {
        if self.hubs.is_some() {
            return;
        }
        let mut hubs = Vec::new();
        for name in self.wanted.clone() {
            match Hub::open(&name, self.node) {
                Ok(hub) => hubs.push(hub),
                Err(error) => {
                    let hint = match std::env::var("FI_PROVIDER") {
                        Ok(filter) => {
                            format!("; FI_PROVIDER={filter} may hide a part of it: add {name} there")
                        }
                        Err(_) => String::new(),
                    };
                    self.remark(format_args!("no lanes over the fabric {name}: {error}{hint}"));
                }
            }
        }
        self.hubs = Some(hubs);
    }

    fn hub(&mut self, pipe: Pipe) -> Option<&mut Hub> {
        self.hubs.as_mut()?.get_mut(pipe.hub)
    }

    /// The endpoints to offer.
    pub(crate) fn endpoints(&mut self) -> Vec<OfferedEndpoint> {
        self.open();
        let hubs = self.hubs.iter().flatten();
        hubs.map(|hub| OfferedEndpoint { provider: hub.provider().to_owned(), name: hub.name().to_vec() })
            .collect()
    }

    /// Chooses the first endpoint that can be reached from here.
    pub(crate) fn take(&mut self, endpoints: &[OfferedEndpoint], near: bool) -> Option<Taken<Pipe>> {
        if self.is_off() || endpoints.is_empty() {
            return None;
        }
        self.open();
        for (choice, endpoint) in
            endpoints.iter().enumerate().filter(|(_, endpoint)| near || endpoint.provider != "shm")
        {
            let same = |hub: &Hub| hub.provider() == endpoint.provider;
            let Some(hub) = self.hubs.iter().flatten().position(same) else { continue };
            match self.add(hub, &endpoint.name) {
                Ok((pipe, name)) => return Some(Taken { choice, pipe, lane: pipe.token, name }),
                Err(error) => self.remark(format_args!("a lane stays TCP: {}: {error}", endpoint.provider)),
            }
        }
        None
    }

    /// Makes a lane from one of [`Hubs::endpoints`].
    pub(crate) fn join(&mut self, endpoint: &OfferedEndpoint, name: &[u8]) -> Result<Pipe, FabricError> {
        let same = |hub: &Hub| hub.provider() == endpoint.provider && hub.name() == endpoint.name;
        let choice = self.hubs.iter().flatten().position(same).ok_or(FabricError::Full)?;
        self.add(choice, name).map(|(pipe, _)| pipe)
    }

    fn add(&mut self, hub: usize, name: &[u8]) -> Result<(Pipe, Vec<u8>), FabricError> {
        let hubs = self.hubs.as_mut().and_then(|hubs| hubs.get_mut(hub));
        let found = hubs.ok_or(FabricError::Full)?;
        let token = found.add()?;
        if let Err(error) = found.connect(token, name) {
            found.remove(token);
            return Err(error);
        }
        Ok((Pipe { hub, token }, found.name().to_vec()))
    }

    /// Name of the lane's provider.
    pub fn provider(&self, pipe: Pipe) -> &str {
        self.hubs.as_ref().and_then(|hubs| hubs.get(pipe.hub)).map_or("", Hub::provider)
    }

    pub(crate) fn probe(&mut self, pipe: Pipe, theirs: u64) {
        if let Some(hub) = self.hub(pipe) {
            hub.probe(pipe.token, theirs);
        }
    }

    pub(crate) fn is_proved(&mut self, pipe: Pipe) -> bool {
        self.hub(pipe).is_some_and(|hub| hub.is_proved(pipe.token))
    }

    /// Why a fabric failed, if one did. New lanes do not use it.
    pub fn failure(&self) -> Option<&str> {
        self.hubs.iter().flatten().find_map(Hub::failure)
    }

    /// Sets the number that the lane's news carry.
    pub fn set_key(&mut self, pipe: Pipe, key: u64) {
        if let Some(hub) = self.hub(pipe) {
            hub.set_key(pipe.token, key);
        }
    }

    pub(crate) fn begin(&mut self, pipe: Pipe, connection: OwnedFd) {
        if let Some(hub) = self.hub(pipe) {
            hub.begin(pipe.token, connection);
        }
    }

    /// Reads a lane's received bytes.
    ///
    /// # Safety
    /// Every piece is valid for writing and nobody else touches it during the call.
    pub unsafe fn read(&mut self, pipe: Pipe, pieces: &[libc::iovec]) -> Piped {
        match self.hub(pipe) {
            // SAFETY: the caller's promise.
            Some(hub) => unsafe { hub.read(pipe.token, pieces) },
            None => Piped::Failed("the fabric is gone".to_owned()),
        }
    }

    /// Writes to a lane as far as there is credit. The bytes written are copied.
    ///
    /// # Safety
    /// Every piece is valid for reading during the call.
    pub unsafe fn write(&mut self, pipe: Pipe, pieces: &[libc::iovec]) -> Piped {
        match self.hub(pipe) {
            // SAFETY: the caller's promise.
            Some(hub) => unsafe { hub.write(pipe.token, pieces) },
            None => Piped::Failed("the fabric is gone".to_owned()),
        }
    }

    /// As [`Hubs::read`], into one piece.
    pub fn read_into(&mut self, pipe: Pipe, to: &mut [u8]) -> Piped {
        let piece = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
        // SAFETY: the piece is `to`, which is borrowed for the call.
        unsafe { self.read(pipe, &[piece]) }
    }

    /// As [`Hubs::write`], from one piece.
    pub fn write_from(&mut self, pipe: Pipe, from: &[u8]) -> Piped {
        let piece = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
        // SAFETY: the piece is `from`, which is only read and borrowed for the call.
        unsafe { self.write(pipe, &[piece]) }
    }

    /// Ends our bytes on a lane, after those that were written.
    pub fn finish(&mut self, pipe: Pipe) {
        if let Some(hub) = self.hub(pipe) {
            hub.finish(pipe.token);
        }
    }

    /// Handles a lane's readable connection. False if nothing can arrive there any more.
    pub fn stir(&mut self, pipe: Pipe) -> bool {
        self.hub(pipe).is_some_and(|hub| hub.stir(pipe.token))
    }

    /// Removes a lane.
    pub fn remove(&mut self, pipe: Pipe) {
        if let Some(hub) = self.hub(pipe) {
            hub.remove(pipe.token);
        }
    }

    /// Lets the fabrics progress, and adds the lanes that changed to `news`.
    pub fn poll(&mut self, news: &mut Vec<News>) {
        for hub in self.hubs.iter_mut().flatten() {
            hub.poll(news);
        }
    }

    /// Tells the neighbours that a thread is about to sleep until a lane's connection is readable.
    pub fn doze(&mut self) {
        for hub in self.hubs.iter_mut().flatten() {
            hub.doze();
        }
    }

    /// Longest time for that sleep; `None` if unlimited.
    pub fn deadline(&mut self) -> Option<Duration> {
        self.hubs.iter_mut().flatten().filter_map(Hub::deadline).min()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_fabric_that_fails_says_why_and_takes_no_more_lanes() {
        let mut hubs = Hubs::new("shm", Ipv4Addr::LOCALHOST.into(), |_| {});
        let endpoints = hubs.endpoints();
        if endpoints.is_empty() {
            eprintln!("skipped: libfabric is not installed");
            return;
        }
        let Taken { pipe, .. } = hubs.take(&endpoints, true).expect("it leads to itself");
        assert_eq!(hubs.failure(), None);
        let error = FabricError::Call { what: "fi_cq_read", why: "the port is down".to_owned() };
        hubs.hubs.iter_mut().flatten().for_each(|hub| hub.give_up(&error));
        assert_eq!(hubs.failure(), Some("shm: fi_cq_read: the port is down"));
        assert!(matches!(hubs.write_from(pipe, b"lost"), Piped::Failed(why) if why.contains("port is down")));
        hubs.remove(pipe);
        assert!(hubs.take(&endpoints, true).is_none(), "a lane over what has failed");
    }
}
