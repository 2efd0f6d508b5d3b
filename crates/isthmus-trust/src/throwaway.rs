//! Keys for one conversation. They are never written to a file.

use std::io;
use std::path::Path;

use isthmus_wire::AsId;
use rcgen::{Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::Trust;
use crate::keygen::{Keygen, unusable};
use crate::tls::Neighbours;

/// Validity of the certificates: longer than any one copy takes. Days.
const DAYS: u32 = 30;

/// One side's authority, key and certificate. The other side has to receive [`Throwaway::authority`] over a channel
/// that nobody can tamper with, such as ssh.
#[derive(Debug)]
pub struct Throwaway {
    authority: CertificateDer<'static>,
    certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
}

impl Throwaway {
    /// Makes the keys of the AS `as_id`.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn make(as_id: u32) -> io::Result<Self> {
        let about = Keygen { as_id, folder: Path::new(""), name: "one copy", days: DAYS };
        let authority_key = KeyPair::generate().map_err(unusable)?;
        let params = about.authority_params(i64::from(DAYS))?;
        let authority = params.self_signed(&authority_key).map_err(unusable)?.der().clone();
        let issuer = Issuer::new(params, authority_key);
        let key = KeyPair::generate().map_err(unusable)?;
        let certificate = about.host_params()?.signed_by(&key, &issuer).map_err(unusable)?.der().clone();
        Ok(Self { authority, certificate, key: PrivatePkcs8KeyDer::from(key.serialize_der()) })
    }

    /// The authority's certificate in DER. The other side needs it.
    pub fn authority(&self) -> &[u8] {
        &self.authority
    }

    /// The TLS settings for a handshake with the AS `other`. Its authority's certificate came over the safe channel.
    ///
    /// # Errors
    /// The certificate cannot be read, or is not that AS's.
    pub fn trust(&self, other: AsId, authority: &[u8], protocols: &[&[u8]]) -> Result<Trust, rustls::Error> {
        let neighbours = Neighbours::only(&CertificateDer::from(authority), other)?;
        let key = PrivateKeyDer::Pkcs8(self.key.clone_key());
        Trust::new(vec![self.certificate.clone()], key, neighbours, protocols)
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::ServerName;
    use rustls::{ClientConnection, ServerConnection};

    use super::*;

    fn shake_hands(one: &Trust, two: &Trust) -> Result<(), rustls::Error> {
        let name = ServerName::try_from("isthmus").expect("a name");
        let mut client = ClientConnection::new(one.client.clone(), name)?;
        let mut server = ServerConnection::new(two.server.clone())?;
        for _ in 0..4 {
            let (mut out, mut back) = (Vec::new(), Vec::new());
            while client.wants_write() {
                client.write_tls(&mut out).expect("a vector takes all");
            }
            let mut unread = &out[..];
            while !unread.is_empty() {
                server.read_tls(&mut unread).expect("a slice gives all");
                server.process_new_packets()?;
            }
            while server.wants_write() {
                server.write_tls(&mut back).expect("a vector takes all");
            }
            let mut unread = &back[..];
            while !unread.is_empty() {
                client.read_tls(&mut unread).expect("a slice gives all");
                client.process_new_packets()?;
            }
        }
        assert!(!client.is_handshaking() && !server.is_handshaking());
        Ok(())
    }

    #[test]
    fn only_those_two_know_each_other() {
        let make = |as_id| Throwaway::make(as_id).expect("made");
        let (here, there, stranger) = (make(1), make(2), make(1));
        let trust = |own: &Throwaway, as_id, other: &Throwaway| {
            own.trust(AsId(as_id), other.authority(), &[b"test"]).expect("certificates")
        };
        let server = trust(&there, 1, &here);
        assert_eq!(shake_hands(&trust(&here, 2, &there), &server), Ok(()));
        // It names the same AS, and signed its certificate itself.
        let error = shake_hands(&trust(&stranger, 2, &there), &server).expect_err("a stranger");
        assert!(matches!(error, rustls::Error::InvalidCertificate(_)), "{error}");
        assert!(there.trust(AsId(3), here.authority(), &[b"test"]).is_err(), "it is AS 1's");
    }
}
