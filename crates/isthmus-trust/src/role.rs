//! The roles that a certificate is accepted for, and the list of certificates that are no longer accepted.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

use crate::tls::{TrustError, unread};

const URI: &str = "isthmus://role/";

/// The role of a certificate's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A router: it passes lanes on.
    Router,
    /// A mover: `isthmus serve` and `isthmus cp`.
    Mover,
    /// A host that runs programs.
    Host,
}

impl Role {
    const ALL: [Self; 3] = [Self::Router, Self::Mover, Self::Host];

    fn name(self) -> &'static str {
        match self {
            Self::Router => "router",
            Self::Mover => "mover",
            Self::Host => "host",
        }
    }

    /// The URI that names this role in a certificate.
    pub(crate) fn uri(self) -> String {
        format!("{URI}{}", self.name())
    }

    /// Whether a certificate is accepted for this role. A certificate that names roles is accepted for those only.
    /// One that names none is accepted for all.
    pub(crate) fn is_of(self, certificate: &CertificateDer<'_>) -> bool {
        let Ok(certificate) = EndEntityCert::try_from(certificate) else { return false };
        let mut named = certificate.valid_uri_names().filter_map(|uri| uri.strip_prefix(URI)).peekable();
        named.peek().is_none() || named.any(|name| name == self.name())
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|role| role.name() == text);
        found.ok_or_else(|| "expected router, mover or host".to_owned())
    }
}

/// Length of a fingerprint. Bytes.
const LEN: usize = 32;

/// The SHA-256 of a certificate, as `openssl x509 -fingerprint -sha256` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fingerprint([u8; LEN]);

impl Fingerprint {
    /// The fingerprint of a certificate.
    pub fn of(certificate: &[u8]) -> Self {
        let mut bytes = [0; LEN];
        bytes.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, certificate).as_ref());
        Self(bytes)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Fingerprint {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b':').collect();
        let mut bytes = [0; LEN];
        if digits.len() != 2 * LEN || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(());
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            *byte =
                std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok()).ok_or(())?;
        }
        Ok(Self(bytes))
    }
}

/// Reads a deny list: one fingerprint a line; "#" begins a comment.
pub(crate) fn deny_list(file: &Path) -> Result<BTreeSet<Fingerprint>, TrustError> {
    let text = std::fs::read_to_string(file).map_err(|error| unread(file, &error))?;
    let mut denied = BTreeSet::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let fingerprint = line.parse().map_err(|()| TrustError {
            place: format!("{}:{}", file.display(), number + 1),
            message: "expected a SHA-256 fingerprint of 64 hexadecimal digits, as `openssl x509 -noout -fingerprint \
                      -sha256 -in FILE.pem` prints it after the \"=\""
                .to_owned(),
            is_refused: false,
        })?;
        denied.insert(fingerprint);
    }
    Ok(denied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_read_as_openssl_shows_them() {
        let fingerprint = Fingerprint::of(b"abc");
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(fingerprint.to_string(), text);
        let pairs: Vec<_> = (0..32).map(|at| text[2 * at..2 * at + 2].to_uppercase()).collect();
        assert_eq!(pairs.join(":").parse(), Ok(fingerprint));
        assert_eq!("ba78".parse::<Fingerprint>(), Err(()));
    }

    #[test]
    fn a_deny_list_has_remarks_and_its_faults_a_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("deny.txt");
        let good = format!("# stolen in May\n{}  # r2\n\n", Fingerprint::of(b"x"));
        std::fs::write(&file, &good).expect("written");
        assert_eq!(deny_list(&file).expect("good"), BTreeSet::from([Fingerprint::of(b"x")]));
        std::fs::write(&file, format!("{good}r2.pem\n")).expect("written");
        let error = deny_list(&file).expect_err("no fingerprint").to_string();
        assert!(error.contains("deny.txt:4:") && error.contains("openssl x509"), "{error}");
        assert!(deny_list(&folder.path().join("missing")).is_err());
    }
}
