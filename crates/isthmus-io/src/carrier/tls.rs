//! Lanes that are TCP connections with mutual TLS 1.3.
//!
//! Both ends show certificates of their AS ([`isthmus_trust`]). The session also gives the keys of a UDP stream, which
//! the end that connected may open instead. This connection then ends.

use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use isthmus_trust::Trust;
use isthmus_udp::Session;
use isthmus_units::PerHost;
use isthmus_wire::AsId;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, Connection, Error};

use super::buffers::SharedBuffers;
use super::tcp::{Looked, Paths, TcpLane};
use super::{Settled, Transfer};
use crate::log::info_sparingly;
use crate::settings::TcpCongestion;

/// The ALPN protocol of these sessions.
pub(crate) const PROTOCOLS: &[&[u8]] = &[b"isthmus-lane/1"];
/// Label of the exported keys for a UDP stream.
const EXPORTER: &[u8] = b"EXPORTER-isthmus-udp";
/// The first byte of a TLS session (a handshake record). No plain lane begins with it.
const HANDSHAKE: u8 = 22;
/// Most bytes that are read at once. Bytes.
const READ_BYTES: usize = 64 << 10;
/// Most encrypted bytes that may wait to be sent. Bytes.
const UNSENT_BYTES: usize = 128 << 10;
/// Most pieces that are encrypted at once. Count.
const PIECES: usize = 64;

/// One side does not trust the other, so the lane was not made. The text says what to do.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Untrusted(String);

/// The state that lanes with TLS share.
pub(crate) struct Tls {
    trust: Trust,
    pub(super) buffers: SharedBuffers,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("held", &self.buffers).finish_non_exhaustive()
    }
}

impl Tls {
    pub(crate) fn new(trust: Trust) -> Self {
        Self { trust, buffers: SharedBuffers::default() }
    }

    /// A lane that is being connected.
    pub(super) fn dialled(&self, tcp: TcpLane) -> io::Result<TlsLane> {
        // Certificates name an AS; TLS only requires some server name.
        let name = ServerName::try_from("isthmus").map_err(io::Error::other)?;
        let client =
            rustls::ClientConnection::new(self.trust.client.clone(), name).map_err(io::Error::other)?;
        Ok(TlsLane::new(tcp, client.into(), true))
    }

    /// An incoming lane that begins a session.
    pub(super) fn accepted(&self, tcp: TcpLane) -> io::Result<TlsLane> {
        let server = rustls::ServerConnection::new(self.trust.server.clone()).map_err(io::Error::other)?;
        Ok(TlsLane::new(tcp, server.into(), false))
    }
}

/// Whether an incoming connection begins a session; `None` while nothing has come.
pub(super) fn begins(tcp: &TcpLane) -> io::Result<Option<bool>> {
    Ok(tcp.peek()?.map(|first| first == HANDSHAKE))
}

/// A lane with TLS.
pub(crate) struct TlsLane {
    tcp: TcpLane,
    session: Box<Connection>,
    dialled: bool,
    connected: bool,
    /// The lane's index, once it is settled.
    index: usize,
    /// Bytes that were read from the connection; those from `taken` to `filled` are not decrypted yet.
    inward: Vec<u8>,
    taken: usize,
    filled: usize,
    /// Decrypted bytes that wait to be read.
    decrypted: usize,
    /// Bytes of the pieces to be written that are encrypted and not counted as written yet.
    owed: usize,
}

impl fmt::Debug for TlsLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsLane").field("tcp", &self.tcp).finish_non_exhaustive()
    }
}

impl TlsLane {
    fn new(tcp: TcpLane, mut session: Connection, dialled: bool) -> Self {
        session.set_buffer_limit(Some(UNSENT_BYTES));
        Self {
            tcp,
            session: Box::new(session),
            dialled,
            connected: !dialled,
            index: usize::MAX,
            inward: Vec::new(),
            taken: 0,
            filled: 0,
            decrypted: 0,
            owed: 0,
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.tcp.fd()
    }

    pub(super) fn tcp(&self) -> &TcpLane {
        &self.tcp
    }

    pub(super) fn rtt_us(&self) -> Option<u64> {
        self.tcp.rtt_us()
    }

    pub(super) fn follow(&mut self, paths: &Paths, former: &PerHost<TcpCongestion>) {
        self.tcp.follow(paths, former);
    }

    pub(super) fn look(&mut self, paths: &mut Paths) -> Option<Looked> {
        self.tcp.look(paths)
    }

    pub(super) fn is_dialled(&self) -> bool {
        self.dialled
    }

    pub(super) fn peer_ip(&self) -> Option<IpAddr> {
        self.tcp.peer_ip()
    }

    /// The AS at the other end, once it is settled.
    pub(super) fn peer_as(&self) -> Option<AsId> {
        isthmus_trust::peer_as(self.session.peer_certificates())
    }

    /// The keys of one UDP stream, once it is settled.
    pub(super) fn udp_session(&self) -> io::Result<Session> {
        let mut exported = [0; Session::LEN];
        let label = self.peer_as().map_or(0, |as_id| u64::from(as_id.0));
        self.session.export_keying_material(&mut exported, EXPORTER, None).map_err(io::Error::other)?;
        Ok(Session::new(&exported, label))
    }

    /// Continues the handshake.
    ///
    /// # Errors
    /// The connection's, or [`Untrusted`].
    pub(super) fn settle(&mut self, index: usize, paths: &mut Paths, tls: &mut Tls) -> io::Result<Settled> {
        self.index = index;
        if !self.connected {
            match self.tcp.settle(paths)? {
                Settled::Yes => self.connected = true,
                not => return Ok(not),
            }
        }
        let settled = self.shake_hands(tls).inspect_err(|error| {
            let host = self.tcp.peer_ip().map_or_else(String::new, |host| format!(" with {host}"));
            info_sparingly!("no encrypted lane{host}: {error}");
        });
        self.put_by(tls);
        settled
    }

    fn shake_hands(&mut self, tls: &mut Tls) -> io::Result<Settled> {
        loop {
            let flushed = self.flush().map_err(|error| self.cut_short(error))?;
            if !self.session.is_handshaking() && flushed {
                self.note_readable(tls);
                return Ok(Settled::Yes);
            }
            match self.pull(tls).map_err(|error| self.cut_short(error))? {
                Pulled::Bytes => {}
                Pulled::Nothing => return Ok(Settled::Not { until_writable: !flushed }),
                Pulled::End => return Err(self.cut_short(io::ErrorKind::UnexpectedEof.into())),
            }
        }
    }

    /// The error for a connection that ends during the handshake.
    fn cut_short(&self, error: io::Error) -> io::Error {
        let broken = matches!(
            error.kind(),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
        );
        if !broken || !self.dialled {
            return error;
        }
        untrusted(
            "the peer ended the connection when we began TLS: set tls to required there too, or to off at both ends",
        )
    }

    /// Checks that the other side has not refused us, while nothing else is expected from it.
    ///
    /// # Errors
    /// See [`TlsLane::settle`]. In TLS 1.3 the other side tells only now if it does not trust us.
    pub(super) fn check(&mut self, tls: &mut Tls) -> io::Result<()> {
        let pulled = self.pull(tls);
        self.put_by(tls);
        match pulled? {
            Pulled::End => Err(io::ErrorKind::UnexpectedEof.into()),
            Pulled::Bytes | Pulled::Nothing => Ok(()),
        }
    }

    /// Like [`TcpLane::read`].
    ///
    /// # Safety
    /// Every piece is valid for writing and nobody else touches it during the call.
    pub(super) unsafe fn read(&mut self, pieces: &mut [libc::iovec], tls: &mut Tls) -> Transfer {
        let (mut total, mut room) = (0, 0);
        let mut end = None;
        for piece in pieces {
            // SAFETY: the caller's promise.
            let place = unsafe { std::slice::from_raw_parts_mut(piece.iov_base.cast(), piece.iov_len) };
            room += place.len();
            let (n, over) = self.fill(place, tls);
            total += n;
            end = over;
            if total < room {
                break;
            }
        }
        if total == room {
            self.note_readable(tls);
        }
        self.put_by(tls);
        match end {
            _ if total > 0 => Transfer::Bytes(total),
            Some(end) => end,
            None => Transfer::Blocked,
        }
    }

    /// Makes the lane be read again if it holds bytes, since its connection may not be readable.
    fn note_readable(&self, tls: &mut Tls) {
        if self.decrypted > 0 || self.taken < self.filled {
            tls.buffers.must_read(self.index);
        }
    }

    /// Reads the bytes that are there into `place`. If nothing more will come, also returns the reason.
    fn fill(&mut self, place: &mut [u8], tls: &mut Tls) -> (usize, Option<Transfer>) {
        let mut filled = 0;
        while filled < place.len() {
            if self.decrypted > 0 {
                let read = self.session.reader().read(&mut place[filled..]);
                match read {
                    Ok(n) if n > 0 => {
                        self.decrypted -= n;
                        filled += n;
                        continue;
                    }
                    Ok(_) => return (filled, Some(Transfer::Bytes(0))),
                    Err(error) => return (filled, Some(Transfer::Failed(error))),
                }
            }
            match self.pull(tls) {
                Ok(Pulled::Bytes) => {}
                Ok(Pulled::Nothing) => return (filled, None),
                Ok(Pulled::End) => return (filled, Some(Transfer::Bytes(0))),
                Err(error) => return (filled, Some(Transfer::Failed(error))),
            }
        }
        (filled, None)
    }

    /// Reads the next bytes of the connection.
    fn pull(&mut self, tls: &mut Tls) -> io::Result<Pulled> {
        if self.taken == self.filled {
            if self.inward.is_empty() {
                self.inward = tls.buffers.lend(READ_BYTES);
            }
            (self.taken, self.filled) = (0, 0);
            match self.tcp.receive(&mut self.inward)? {
                None => return Ok(Pulled::Nothing),
                Some(0) => return Ok(Pulled::End),
                Some(n) => self.filled = n,
            }
        }
        let mut rest = &self.inward[self.taken..self.filled];
        self.session.read_tls(&mut rest)?;
        self.taken = self.filled - rest.len();
        match self.session.process_new_packets() {
            Ok(state) => self.decrypted = state.plaintext_bytes_to_read(),
            Err(error) => {
                // Tell the other side why.
                let _ = self.flush();
                return Err(self.distrust(&error));
            }
        }
        Ok(Pulled::Bytes)
    }

    /// Returns a read buffer that holds nothing to those that lanes share.
    fn put_by(&mut self, tls: &mut Tls) {
        if self.taken == self.filled {
            (self.taken, self.filled) = (0, 0);
            tls.buffers.give_back(&mut self.inward);
        }
    }

    /// Like [`TcpLane::write`]. The caller passes pieces again until they are counted as written.
    ///
    /// # Safety
    /// Every piece is valid for reading during the call.
    pub(super) unsafe fn write(&mut self, pieces: &mut [libc::iovec]) -> Transfer {
        let mut total = 0;
        loop {
            match self.flush() {
                Ok(true) => total += std::mem::take(&mut self.owed),
                Ok(false) if total == 0 => return Transfer::Blocked,
                Ok(false) => return Transfer::Bytes(total),
                Err(error) => return Transfer::Failed(error),
            }
            let mut skip = total;
            let mut slices = [IoSlice::new(&[]); PIECES];
            let mut count = 0;
            for piece in pieces.iter() {
                if skip >= piece.iov_len {
                    skip -= piece.iov_len;
                    continue;
                }
                if count == PIECES {
                    break;
                }
                // SAFETY: the caller's promise.
                let bytes = unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len) };
                slices[count] = IoSlice::new(&bytes[std::mem::take(&mut skip)..]);
                count += 1;
            }
            if count == 0 {
                return Transfer::Bytes(total);
            }
            match self.session.writer().write_vectored(&slices[..count]) {
                Ok(n) if n > 0 => self.owed = n,
                Ok(_) => return Transfer::Blocked,
                Err(error) => return Transfer::Failed(error),
            }
        }
    }

    /// Sends the encrypted bytes. False if the connection takes no more now.
    fn flush(&mut self) -> io::Result<bool> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut Outward(&self.tcp)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// See [`TcpLane::discard`].
    pub(super) fn discard(&self) {
        self.tcp.discard();
    }

    pub(super) fn finish(&mut self) {
        self.session.send_close_notify();
        // A peer that does not get the alert sees the connection's end.
        let _ = self.flush();
        self.tcp.finish();
    }

    /// The error that says what is wrong, and what to do.
    fn distrust(&self, error: &Error) -> io::Error {
        use AlertDescription as Alert;
        match error {
            Error::InvalidCertificate(CertificateError::Expired) => {
                untrusted("the peer's certificate has expired; make it another with `isthmus router keygen`")
            }
            Error::InvalidCertificate(CertificateError::NotValidYet) => {
                untrusted("the peer's certificate is not valid yet; set the clocks of both hosts")
            }
            Error::InvalidCertificate(_) => untrusted(
                "the peer's certificate is by none of the authorities in tls_authorities; \
                 add its AS's there (the asN.pem of `isthmus router keygen`)",
            ),
            Error::AlertReceived(Alert::UnknownCA | Alert::AccessDenied | Alert::BadCertificate) => {
                untrusted(
                    "the peer does not trust our certificate; add our AS's authority to tls_authorities there",
                )
            }
            Error::AlertReceived(Alert::CertificateExpired) => {
                untrusted("our certificate has expired; make another with `isthmus router keygen`")
            }
            Error::InvalidMessage(_) if self.session.is_handshaking() => untrusted(
                "the other side speaks no TLS; set tls to required there too, or to off at both ends",
            ),
            _ if self.session.is_handshaking() => untrusted(&format!("TLS: {error}")),
            _ => io::Error::other(format!("TLS: {error}")),
        }
    }
}

fn untrusted(text: &str) -> io::Error {
    io::Error::other(Untrusted(text.to_owned()))
}

/// The result of reading the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pulled {
    Bytes,
    Nothing,
    End,
}

/// Writes encrypted bytes to the connection.
struct Outward<'a>(&'a TcpLane);

impl Write for Outward<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.send(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
