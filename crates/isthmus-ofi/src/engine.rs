//! The engine below an endpoint: an `isthmus_io` endpoint if it is reliable (`FI_EP_RDM`), or a socket for datagrams
//! (`FI_EP_DGRAM`).

use std::os::fd::RawFd;
use std::sync::Arc;

use isthmus_io::{Datagrams, Endpoint, Watch};
use isthmus_proto::{Completion, PeerId, RecvRequest, SendRequest};
use isthmus_wire::Address;
use libc::iovec;

use crate::convert::length;
use crate::error::Error;
use crate::info::MSG_SIZE_MAX;

#[derive(Clone, Debug)]
pub(crate) enum Engine {
    Reliable(Arc<Endpoint>),
    Datagrams(Arc<Datagrams>),
}

impl Engine {
    /// The reliable endpoint; an error for datagrams, which do not offer the call.
    pub(crate) fn reliable(&self) -> Result<&Endpoint, Error> {
        match self {
            Self::Reliable(endpoint) => Ok(endpoint),
            Self::Datagrams(_) => Err(Error::Unsupported("anything but plain messages by datagrams")),
        }
    }

    pub(crate) fn address(&self) -> Address {
        match self {
            Self::Reliable(endpoint) => endpoint.address(),
            Self::Datagrams(datagrams) => datagrams.address(),
        }
    }

    pub(crate) fn peer(&self, address: &Address) -> Result<PeerId, Error> {
        Ok(match self {
            Self::Reliable(endpoint) => endpoint.peer(address),
            Self::Datagrams(datagrams) => datagrams.peer(address),
        }?)
    }

    /// # Safety
    /// Unless injected, the buffers stay valid and unchanged until the completion was polled.
    #[inline(never)]
    pub(crate) unsafe fn send(&self, request: &SendRequest, iov: &[iovec]) -> Result<(), Error> {
        Ok(match self {
            Self::Reliable(_) if length(iov) > MSG_SIZE_MAX => return Err(Error::TooLong(MSG_SIZE_MAX)),
            // SAFETY: by this function's contract.
            Self::Reliable(endpoint) => unsafe { endpoint.send(request, iov) },
            Self::Datagrams(datagrams) if length(iov) > datagrams.message_max() => {
                return Err(Error::TooLong(datagrams.message_max()));
            }
            // SAFETY: by this function's contract.
            Self::Datagrams(datagrams) => unsafe { datagrams.send(request, iov) },
        }?)
    }

    /// # Safety
    /// The buffers stay valid and untouched until the completion was polled.
    #[inline(never)]
    pub(crate) unsafe fn recv(&self, request: &RecvRequest, iov: &[iovec]) -> Result<(), Error> {
        Ok(match self {
            // SAFETY: by this function's contract.
            Self::Reliable(endpoint) => unsafe { endpoint.recv(request, iov) },
            // SAFETY: by this function's contract.
            Self::Datagrams(datagrams) => unsafe { datagrams.recv(request, iov) },
        }?)
    }

    pub(crate) fn cancel(&self, context: u64) -> bool {
        match self {
            Self::Reliable(endpoint) => endpoint.cancel(context),
            Self::Datagrams(datagrams) => datagrams.cancel(context),
        }
    }

    /// Drives it, for a program that has room for `room` completions now.
    pub(crate) fn poll(&self, room: usize, out: &mut Vec<Completion>) -> usize {
        match self {
            Self::Reliable(endpoint) => endpoint.poll_some(room, out),
            Self::Datagrams(datagrams) => datagrams.poll(out),
        }
    }

    /// Tells without a lock whether a poll would be in vain; `None` for datagrams.
    pub(crate) fn watch(&self) -> Option<Arc<Watch>> {
        match self {
            Self::Reliable(endpoint) => Some(endpoint.watch()),
            Self::Datagrams(_) => None,
        }
    }

    pub(crate) fn wait_fd(&self) -> RawFd {
        match self {
            Self::Reliable(endpoint) => endpoint.wait_fd(),
            Self::Datagrams(datagrams) => datagrams.wait_fd(),
        }
    }

    pub(crate) fn arm(&self) -> bool {
        match self {
            Self::Reliable(endpoint) => endpoint.arm(),
            Self::Datagrams(datagrams) => datagrams.arm(),
        }
    }

    pub(crate) fn fall_asleep(&self) -> bool {
        match self {
            Self::Reliable(endpoint) => endpoint.fall_asleep(),
            Self::Datagrams(datagrams) => datagrams.fall_asleep(),
        }
    }

    pub(crate) fn wake_up(&self) {
        match self {
            Self::Reliable(endpoint) => endpoint.wake_up(),
            Self::Datagrams(datagrams) => datagrams.wake_up(),
        }
    }

    pub(crate) fn close(&self) {
        match self {
            Self::Reliable(endpoint) => endpoint.close(),
            Self::Datagrams(datagrams) => datagrams.close(),
        }
    }
}
