//! The channel of control messages: TLS 1.3, or unencrypted where the network is trusted. No I/O is done here: bytes of
//! the other side go in and control messages come out, and the reverse.

use std::io::{Read, Write};

use isthmus_trust::Trust;
use isthmus_wire::AsId;
use rustls::Connection;
use rustls::pki_types::ServerName;

use crate::seal::{KEY_LEN, Seal};
use crate::wire::{CONTROL_MAX, Control, VERSIONS, WireError};

/// The versions of the protocol as both ends name them (ALPN), the newest first. The newest of both is spoken.
pub const PROTOCOLS: &[&[u8]] = &[b"isthmus-mover/2", b"isthmus-mover/1"];

/// Why a channel has failed.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The TLS session failed: the certificate was refused, or the bytes were changed.
    #[error("the other side cannot be trusted: {}", isthmus_trust::explain(.0))]
    Tls(#[from] rustls::Error),
    /// A message that came through it is invalid.
    #[error(transparent)]
    Wire(#[from] WireError),
}

#[derive(Debug)]
enum Cover {
    Plain { out: Vec<u8> },
    Tls(Box<Connection>),
}

/// One side of the channel; see the module.
#[derive(Debug)]
pub struct Channel {
    cover: Cover,
    /// Bytes that came and were not decoded yet.
    inward: Vec<u8>,
}

impl Channel {
    /// A channel without encryption.
    pub fn plain() -> Self {
        Self { cover: Cover::Plain { out: Vec::new() }, inward: Vec::new() }
    }

    /// The connecting side.
    pub fn client(trust: &Trust) -> Result<Self, ChannelError> {
        // TLS requires a server name. It is not checked, because certificates name an AS.
        let name = ServerName::try_from("isthmus").map_err(|_| WireError::Garbled)?;
        let client = rustls::ClientConnection::new(trust.client.clone(), name)?;
        Ok(Self::tls(Connection::Client(client)))
    }

    /// The accepting side.
    pub fn server(trust: &Trust) -> Result<Self, ChannelError> {
        Ok(Self::tls(Connection::Server(rustls::ServerConnection::new(trust.server.clone())?)))
    }

    fn tls(mut connection: Connection) -> Self {
        // The caller limits the bytes written.
        connection.set_buffer_limit(None);
        Self { cover: Cover::Tls(Box::new(connection)), inward: Vec::new() }
    }

    /// Whether the handshake is done.
    pub fn is_ready(&self) -> bool {
        match &self.cover {
            Cover::Plain { .. } => true,
            Cover::Tls(connection) => !connection.is_handshaking(),
        }
    }

    /// The version that both ends speak.
    pub fn version(&self) -> u16 {
        match &self.cover {
            Cover::Tls(connection) if connection.alpn_protocol() == Some(PROTOCOLS[0]) => VERSIONS.newest,
            _ => VERSIONS.oldest,
        }
    }

    /// The AS of the other side according to its certificate.
    pub fn peer_as(&self) -> Option<AsId> {
        match &self.cover {
            Cover::Plain { .. } => None,
            Cover::Tls(connection) => isthmus_trust::peer_as(connection.peer_certificates()),
        }
    }

    /// The certificates that the other side showed in the handshake, which is done.
    pub fn shown(&self) -> Option<isthmus_trust::Shown> {
        match &self.cover {
            Cover::Plain { .. } => None,
            Cover::Tls(connection) => isthmus_trust::Shown::now(connection.peer_certificates()),
        }
    }

    /// The fingerprint of the other side's certificate.
    pub fn peer_fingerprint(&self) -> Option<isthmus_trust::Fingerprint> {
        match &self.cover {
            Cover::Plain { .. } => None,
            Cover::Tls(connection) => isthmus_trust::peer_fingerprint(connection.peer_certificates()),
        }
    }

    /// Takes bytes from the other side.
    ///
    /// # Errors
    /// [`ChannelError::Tls`]. The next [`Channel::output`] then tells the other side why.
    pub fn receive(&mut self, mut bytes: &[u8]) -> Result<(), ChannelError> {
        let connection = match &mut self.cover {
            Cover::Plain { .. } => {
                self.inward.extend_from_slice(bytes);
                return Ok(());
            }
            Cover::Tls(connection) => connection,
        };
        while !bytes.is_empty() {
            let taken =
                connection.read_tls(&mut bytes).map_err(|error| rustls::Error::General(error.to_string()))?;
            let state = connection.process_new_packets()?;
            let start = self.inward.len();
            self.inward.resize(start + state.plaintext_bytes_to_read(), 0);
            let read = connection.reader().read(&mut self.inward[start..]).unwrap_or(0);
            self.inward.truncate(start + read);
            if taken == 0 {
                return Err(WireError::Garbled.into());
            }
        }
        Ok(())
    }

    /// The next control message that came.
    ///
    /// # Errors
    /// [`ChannelError::Wire`].
    pub fn hear(&mut self) -> Result<Option<Control>, ChannelError> {
        let Some((len, rest)) = self.inward.split_first_chunk::<4>() else { return Ok(None) };
        let len = u32::from_le_bytes(*len) as usize;
        if len > CONTROL_MAX {
            return Err(WireError::TooLong(len).into());
        }
        let Some(bytes) = rest.get(..len) else { return Ok(None) };
        let control = Control::decode(bytes)?;
        self.inward.drain(..4 + len);
        Ok(Some(control))
    }

    /// Queues a control message for the next [`Channel::output`].
    ///
    /// # Errors
    /// [`WireError::TooLong`].
    pub fn say(&mut self, control: &Control) -> Result<(), ChannelError> {
        let bytes = control.encode()?;
        let len = (bytes.len() as u32).to_le_bytes();
        match &mut self.cover {
            Cover::Plain { out } => {
                out.extend_from_slice(&len);
                out.extend_from_slice(&bytes);
            }
            Cover::Tls(connection) => {
                let written = connection.writer().write_all(&[&len, &bytes[..]].concat());
                written.map_err(|error| rustls::Error::General(error.to_string()))?;
            }
        }
        Ok(())
    }

    /// The bytes to send to the other side.
    pub fn output(&mut self) -> Vec<u8> {
        match &mut self.cover {
            Cover::Plain { out } => std::mem::take(out),
            Cover::Tls(connection) => {
                let mut out = Vec::new();
                while connection.wants_write() {
                    // Writing to a vector cannot fail.
                    if connection.write_tls(&mut out).is_err() {
                        break;
                    }
                }
                out
            }
        }
    }

    /// The seals for the blocks that this side sends and receives.
    ///
    /// # Errors
    /// The handshake is not done.
    pub fn seals(&self) -> Result<(Seal, Seal), ChannelError> {
        let Cover::Tls(connection) = &self.cover else { return Ok((Seal::none(), Seal::none())) };
        let seal = |who: &[u8]| {
            let mut key = [0; KEY_LEN];
            connection.export_keying_material(&mut key, b"EXPORTER-isthmus-mover-blocks", Some(who))?;
            Seal::new(&key).map_err(|_| rustls::Error::General("no key can be made".to_owned()))
        };
        let (client, server) = (seal(b"client")?, seal(b"server")?);
        Ok(if matches!(**connection, Connection::Client(_)) { (client, server) } else { (server, client) })
    }
}

#[cfg(test)]
mod tests {
    use isthmus_trust::{Files, Keygen};

    use super::*;

    fn trust(folder: &std::path::Path, own: u32, other: u32, admits: &[u32]) -> Trust {
        for as_id in [own, other] {
            let name = format!("as{as_id}-host");
            if !folder.join(format!("{name}.pem")).exists() {
                Keygen { as_id, folder, name: &name, days: 1 }.make().expect("made");
            }
        }
        let files = Files {
            certificate: folder.join(format!("as{own}-host.pem")),
            key: folder.join(format!("as{own}-host.key")),
            authorities: vec![folder.join(format!("as{other}.pem"))],
            denied: None,
        };
        Trust::load(&files, AsId(own), admits, PROTOCOLS).expect("good files")
    }

    /// What would be a longer message is refused before it is there, and so takes no memory.
    #[test]
    fn a_message_that_is_too_long_is_refused_by_its_length() {
        let mut channel = Channel::plain();
        channel.receive(&(CONTROL_MAX as u32 + 1).to_le_bytes()).expect("taken");
        assert!(matches!(channel.hear(), Err(ChannelError::Wire(WireError::TooLong(_)))));
    }

    fn talk(a: &mut Channel, b: &mut Channel) -> Result<(), ChannelError> {
        for _ in 0..4 {
            for byte in a.output().chunks(100) {
                b.receive(byte)?;
            }
            a.receive(&b.output())?;
        }
        Ok(())
    }

    #[test]
    fn what_is_said_is_heard_in_any_pieces_and_the_seals_agree() {
        let folder = tempfile::tempdir().expect("a folder");
        let (one, two) = (trust(folder.path(), 1, 2, &[2]), trust(folder.path(), 2, 1, &[1]));
        let mut client = Channel::client(&one).expect("made");
        let mut server = Channel::server(&two).expect("made");
        talk(&mut client, &mut server).expect("they know each other");
        assert!(client.is_ready() && server.is_ready());
        assert_eq!((client.peer_as(), server.peer_as()), (Some(AsId(2)), Some(AsId(1))));
        for text in ["a".repeat(200_000), "b".to_owned()] {
            client.say(&Control::Fault(text)).expect("said");
        }
        talk(&mut client, &mut server).expect("heard");
        assert!(matches!(server.hear(), Ok(Some(Control::Fault(text))) if text.len() == 200_000));
        assert_eq!(server.hear().expect("good"), Some(Control::Fault("b".to_owned())));
        assert_eq!(server.hear().expect("good"), None);
        let ((seal, _), (_, open)) = (client.seals().expect("keys"), server.seals().expect("keys"));
        let mut body = *b"bytes";
        let tag = seal.seal(0, b"", &mut body).expect("sealed").expect("a tag");
        let mut sealed = [&body[..], &tag].concat();
        assert_eq!(open.open(0, 0, &mut sealed).expect("the same key"), b"bytes");
    }

    #[test]
    fn who_is_not_admitted_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let (stranger, server) = (trust(folder.path(), 3, 2, &[2]), trust(folder.path(), 2, 1, &[1]));
        let mut client = Channel::client(&stranger).expect("made");
        let mut server = Channel::server(&server).expect("made");
        let error = talk(&mut client, &mut server).expect_err("a stranger").to_string();
        assert!(error.contains("cannot be trusted"), "{error}");
        assert!(!server.is_ready());
    }
}
