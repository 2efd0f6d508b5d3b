//! Mutual TLS 1.3 between sites: reads certificates and checks those of the other side.
//!
//! A certificate names its AS by the URI `isthmus://as/ID` among its alternative names. The authority that signed it
//! names the same AS. So an authority can sign for its own AS only, however many authorities a site accepts.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use isthmus_wire::AsId;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, TrustAnchor, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, OtherError,
    ServerConfig, SignatureScheme,
};
use serde::Deserialize;
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use crate::expiry::{Validity, expires, validity};
use crate::role::{Fingerprint, Role, deny_list};

const URI: &str = "isthmus://as/";

/// The PEM files with certificates and key.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Files {
    /// This side's certificate, and the intermediate certificates up to its authority, if any.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities of the AS's that are admitted.
    pub authorities: Vec<PathBuf>,
    /// Certificates that are no longer accepted: one SHA-256 fingerprint a line. Default: none.
    #[serde(default)]
    pub denied: Option<PathBuf>,
}

/// What is wrong with a certificate or key, with the file and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}")]
pub struct TrustError {
    /// The file.
    pub place: String,
    /// What is wrong, and the remedy.
    pub message: String,
    /// The system refused to read the file, as it does without free descriptors. The configuration may be right.
    pub is_refused: bool,
}

/// The TLS settings for both roles in a handshake.
#[derive(Clone, Debug)]
pub struct Trust {
    /// For the side that connects. Any server name will do, because certificates name an AS.
    pub client: Arc<ClientConfig>,
    /// For the side that accepts.
    pub server: Arc<ServerConfig>,
    /// When this side's certificate, or an intermediate one, expires; `None` if that cannot be read.
    pub expires: Option<SystemTime>,
    pub(crate) neighbours: Arc<Neighbours>,
}

impl Files {
    /// Makes relative paths start at `folder`.
    pub fn relative_to(&mut self, folder: &Path) {
        let own = [&mut self.certificate, &mut self.key].into_iter();
        for file in own.chain(&mut self.authorities).chain(&mut self.denied) {
            *file = folder.join(&file);
        }
    }

    /// The AS's whose authorities are among the files.
    ///
    /// # Errors
    /// A file is no certificate, or names no AS.
    pub fn known(&self) -> Result<Vec<u32>, TrustError> {
        let mut known = Vec::new();
        for file in &self.authorities {
            for authority in certificates(file)? {
                let unnamed =
                    || fault(file, "this authority names no AS; use the one that keygen made".into());
                known.push(as_of(&authority).ok_or_else(unnamed)?.0);
            }
        }
        Ok(known)
    }

    /// What `admits` and the authorities say that can never apply, each as a line for the log.
    ///
    /// # Errors
    /// As [`Files::known`].
    pub fn idle_rules(&self, admits: &[u32]) -> Result<Vec<String>, TrustError> {
        let mut known = self.known()?;
        known.sort_unstable();
        known.dedup();
        let unknown = admits.iter().filter(|id| !known.contains(id)).map(|id| {
            format!("admits names AS {id}, but none of the authorities is that AS's, so that nobody of it is admitted")
        });
        let unnamed = known.iter().filter(|id| !admits.contains(id)).map(|id| {
            format!("tls.authorities has the authority of AS {id}, but admits does not name it, so that nobody of it is admitted")
        });
        Ok(unknown.chain(unnamed).collect())
    }

    /// The AS that the certificate names.
    ///
    /// # Errors
    /// The file is no certificate, or names no AS.
    pub fn as_id(&self) -> Result<AsId, TrustError> {
        as_id_of(&certificates(&self.certificate)?[0]).map_err(|why| {
            let message = format!("this certificate {why}; make one with `isthmus router keygen`");
            fault(&self.certificate, message)
        })
    }
}

/// The URI that names an AS in a certificate.
pub(crate) fn uri_of(as_id: u32) -> String {
    format!("{URI}{as_id}")
}

/// The AS that a certificate names; none if it names several.
fn as_of(certificate: &CertificateDer<'_>) -> Option<AsId> {
    as_id_of(certificate).ok()
}

/// Like [`as_of`]; the error is what is wrong with the certificate.
fn as_id_of(certificate: &CertificateDer<'_>) -> Result<AsId, &'static str> {
    let certificate = EndEntityCert::try_from(certificate).map_err(|_| "cannot be read")?;
    let mut named = certificate.valid_uri_names().filter_map(|uri| uri.strip_prefix(URI));
    let id = named.next().ok_or("names no AS")?.parse().map_err(|_| "names an AS that is no number")?;
    if named.next().is_some() { Err("names several AS's") } else { Ok(AsId(id)) }
}

/// The certificates that the other end of a session showed at its beginning: its own first.
#[derive(Clone, Debug)]
pub struct Shown {
    chain: Vec<CertificateDer<'static>>,
    at: UnixTime,
}

impl Shown {
    /// What a handshake that is done now has shown. None if there was no certificate.
    pub fn now(certificates: Option<&[CertificateDer<'_>]>) -> Option<Self> {
        let chain: Vec<_> = certificates?.iter().map(|shown| shown.clone().into_owned()).collect();
        (!chain.is_empty()).then(|| Self { chain, at: UnixTime::now() })
    }
}

/// The fingerprint of the certificate at the other end of a session.
pub fn peer_fingerprint(certificates: Option<&[CertificateDer<'_>]>) -> Option<Fingerprint> {
    certificates?.first().map(|leaf| Fingerprint::of(leaf))
}

/// The AS at the other end of a session, by the certificates that it showed.
pub fn peer_as(certificates: Option<&[CertificateDer<'_>]>) -> Option<AsId> {
    as_of(certificates?.first()?)
}

impl Trust {
    /// Reads the certificates. This side's certificate must name the AS `own`. Only certificates of the AS's in
    /// `admits` are accepted. `protocols` are the protocol versions of a session, the newest first. Both ends offer
    /// theirs (ALPN, RFC 7301), and the newest common one is spoken. So a session of one kind is never taken for one of
    /// another.
    ///
    /// # Errors
    /// [`TrustError`], which names the file.
    pub fn load(files: &Files, own: AsId, admits: &[u32], protocols: &[&[u8]]) -> Result<Self, TrustError> {
        Self::read(files, own, admits, protocols, None)
    }

    /// Like [`Trust::load`], for one `role`. A certificate that names only other roles is neither shown nor accepted.
    ///
    /// # Errors
    /// [`TrustError`], which names the file.
    pub fn load_as(
        role: Role,
        files: &Files,
        own: AsId,
        admits: &[u32],
        protocols: &[&[u8]],
    ) -> Result<Self, TrustError> {
        Self::read(files, own, admits, protocols, Some(role))
    }

    fn read(
        files: &Files,
        own: AsId,
        admits: &[u32],
        protocols: &[&[u8]],
        role: Option<Role>,
    ) -> Result<Self, TrustError> {
        let chain = certificates(&files.certificate)?;
        let named = as_id_of(&chain[0]);
        if named != Ok(own) {
            let named = named.map_or_else(str::to_owned, |id| format!("names AS {}", id.0));
            let message = format!("the certificate {named}, but this is AS {}", own.0);
            return Err(fault(&files.certificate, format!("{message}; make one with --as {}", own.0)));
        }
        if let Some(role) = role.filter(|role| !role.is_of(&chain[0])) {
            let message = format!("the certificate is that of no {role}; make one with --role {role}");
            return Err(fault(&files.certificate, message));
        }
        let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| match error {
            pem::Error::Io(error) => unread(&files.key, &error),
            error => {
                let text = match certificates(&files.key) {
                    Ok(_) => "there is a certificate in this file, and no private key".to_owned(),
                    Err(_) if is_encrypted(&files.key) => ENCRYPTED.to_owned(),
                    Err(_) => pem_fault("private key", &error),
                };
                fault(&files.key, text)
            }
        })?;
        is_private(&files.key)?;
        let neighbours = Neighbours::load(files, own, admits, role)?;
        Self::new(chain, key, neighbours, protocols).map_err(|error| {
            let key = files.key.display();
            let text = match error {
                Error::InconsistentKeys(_) => {
                    format!("this certificate and the key {key} are no pair; name the two files that keygen made together")
                }
                Error::General(_) => format!("the key {key} is of no kind that is supported; {KINDS}"),
                error => format!("not usable with {key}: {error}"),
            };
            fault(&files.certificate, text)
        })
    }

    pub(crate) fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        neighbours: Neighbours,
        protocols: &[&[u8]],
    ) -> Result<Self, Error> {
        let (neighbours, expires) = (Arc::new(neighbours), expires(&chain));
        let provider = Arc::new(ring::default_provider());
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(neighbours.clone())
            .with_client_auth_cert(chain.clone(), key.clone_key())?;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(neighbours.clone())
            .with_single_cert(chain, key)?;
        client.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        server.alpn_protocols = client.alpn_protocols.clone();
        // A resumed session would skip the check of the certificate.
        client.resumption = rustls::client::Resumption::disabled();
        server.send_tls13_tickets = 0;
        Ok(Self { client: Arc::new(client), server: Arc::new(server), expires, neighbours })
    }

    /// Whether a session whose other end showed these certificates would begin with the present authorities, admitted
    /// AS's and deny list. Sessions that began with earlier ones are checked by this. A certificate or an authority that
    /// has expired since then ends no session, nor does an authority that was renewed since then.
    pub fn believes(&self, shown: &Shown) -> bool {
        let Some((leaf, chain)) = shown.chain.split_first() else { return false };
        let times = [shown.at, UnixTime::now()];
        let is_good = |usage| self.neighbours.check_at(leaf, chain, &times, usage).is_ok();
        is_good(KeyUsage::client_auth()) || is_good(KeyUsage::server_auth())
    }
}

/// Checks that only the owner can read a key, or also a group if root owns the file.
fn is_private(key: &Path) -> Result<(), TrustError> {
    // If the file is missing, reading it gives the error.
    let Ok(there) = std::fs::metadata(key) else { return Ok(()) };
    let shared = if there.uid() == 0 { 0o007 } else { 0o077 };
    if there.mode() & shared == 0 {
        return Ok(());
    }
    let message = format!(
        "others on this host can read this private key (mode {:04o}); chmod 600 {}",
        there.mode() & 0o7777,
        key.display()
    );
    Err(fault(key, message))
}

pub(crate) fn fault(file: &Path, message: String) -> TrustError {
    TrustError { place: file.display().to_string(), message, is_refused: false }
}

/// Whether the system refused to read a file for want of something, such as descriptors. Otherwise the file itself, or
/// the name of it, is at fault.
pub fn is_refused(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{InvalidData, IsADirectory, NotADirectory, NotFound, PermissionDenied};
    !matches!(error.kind(), InvalidData | IsADirectory | NotADirectory | NotFound | PermissionDenied)
}

/// A file that cannot be read.
pub(crate) fn unread(file: &Path, error: &std::io::Error) -> TrustError {
    TrustError { is_refused: is_refused(error), ..fault(file, error.to_string()) }
}

/// The error of a key file that asks for a pass phrase.
const ENCRYPTED: &str = "the private key in this file is encrypted with a pass phrase, which no service can be asked for; \
                         write it without one: openssl pkey -in FILE -out NEW";
/// The kinds of keys that work.
const KINDS: &str = "EC keys of P-256 and P-384, Ed25519 keys, and RSA keys of 2048 to 8192 bits are";

/// Whether a file has a private key in PEM that is encrypted.
fn is_encrypted(file: &Path) -> bool {
    let marks = ["-----BEGIN ENCRYPTED PRIVATE KEY-----", "Proc-Type: 4,ENCRYPTED"];
    std::fs::read_to_string(file).is_ok_and(|text| marks.iter().any(|mark| text.contains(mark)))
}

/// Whether a file seems to have a certificate as DER: it begins as a sequence of 256 bytes or more (X.690).
fn is_der(file: &Path) -> bool {
    std::fs::read(file).is_ok_and(|bytes| bytes.starts_with(&[0x30, 0x82]))
}

/// Says what is wrong with a file that should have a certificate or key. The crate's own text shows lines as lists of
/// bytes.
fn pem_fault(what: &str, error: &pem::Error) -> String {
    match error {
        pem::Error::NoItemsFound => format!("there is no {what} in this file"),
        pem::Error::MissingSectionEnd { end_marker } => format!(
            "the file is cut off: it has no line -----END {}-----; copy it again",
            String::from_utf8_lossy(end_marker).escape_debug()
        ),
        pem::Error::IllegalSectionStart { line } => {
            format!("no {what} in PEM: the line {:?} is not valid", String::from_utf8_lossy(line))
        }
        error => format!("no {what} in PEM: {error}; copy the file again"),
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TrustError> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let read = read.map_err(|error| match error {
        pem::Error::Io(error) => unread(file, &error),
        error => fault(file, pem_fault("certificate", &error)),
    })?;
    if read.is_empty() {
        let is_key = PrivateKeyDer::from_pem_file(file).is_ok();
        let instead = match is_key {
            true => ", but a private key; are the two files swapped?",
            false if is_der(file) => {
                " as PEM, but as DER; convert it: openssl x509 -inform der -in FILE -out NEW"
            }
            false => "",
        };
        return Err(fault(file, format!("there is no certificate in this file{instead}")));
    }
    Ok(read)
}

/// An authority. rustls does not look at its validity: a trust anchor has none (RFC 5280, 6.1.1).
#[derive(Debug)]
pub(crate) struct Authority {
    anchor: TrustAnchor<'static>,
    fingerprint: Fingerprint,
    pub(crate) valid: Validity,
    pub(crate) file: PathBuf,
}

impl Authority {
    /// Reads the authority's own certificate, which is in `file`.
    fn read(certificate: &CertificateDer<'_>, file: &Path) -> Result<Self, webpki::Error> {
        let anchor = anchor_from_trusted_cert(certificate)?.to_owned();
        let valid = validity(certificate).ok_or(webpki::Error::InvalidCertValidity)?;
        Ok(Self { anchor, fingerprint: Fingerprint::of(certificate), valid, file: file.to_owned() })
    }

    fn has_key_of(&self, other: &Self) -> bool {
        self.anchor.subject_public_key_info == other.anchor.subject_public_key_info
    }
}

/// The error of a certificate whose authority is known, and is not valid now.
#[derive(Debug, thiserror::Error)]
#[error("the authority that signed it has expired, or is not valid yet")]
pub(crate) struct StaleAuthority;

/// Accepts a certificate if an authority of the AS that it names signed it, the authority is valid now, and the AS is
/// admitted.
#[derive(Debug)]
pub(crate) struct Neighbours {
    pub(crate) authorities: BTreeMap<AsId, Vec<Authority>>,
    algorithms: WebPkiSupportedAlgorithms,
    denied: BTreeSet<Fingerprint>,
    /// The role that they must have; None: any.
    role: Option<Role>,
}

impl Neighbours {
    /// Accepts this one authority for the AS that it names, which must be `other`.
    pub(crate) fn only(authority: &CertificateDer<'_>, other: AsId) -> Result<Self, Error> {
        let denied = || Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure);
        let named = as_of(authority).filter(|named| *named == other).ok_or_else(denied)?;
        let authority = Authority::read(authority, Path::new(""))
            .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        let algorithms = ring::default_provider().signature_verification_algorithms;
        let authorities = BTreeMap::from([(named, vec![authority])]);
        Ok(Self { authorities, algorithms, denied: BTreeSet::new(), role: None })
    }

    fn load(files: &Files, own: AsId, admits: &[u32], role: Option<Role>) -> Result<Self, TrustError> {
        let denied = files.denied.as_deref().map(deny_list).transpose()?.unwrap_or_default();
        let files = &files.authorities;
        let provider: CryptoProvider = ring::default_provider();
        let algorithms = provider.signature_verification_algorithms;
        let mut authorities: BTreeMap<AsId, Vec<Authority>> = BTreeMap::new();
        for file in files {
            for authority in certificates(file)? {
                let unnamed =
                    || fault(file, "this authority names no AS; use the one that keygen made".into());
                let named = as_of(&authority).ok_or_else(unnamed)?;
                let authority = Authority::read(&authority, file)
                    .map_err(|e| fault(file, format!("not usable as an authority: {e}")))?;
                authorities.entry(named).or_default().push(authority);
            }
        }
        for id in admits.iter().map(|id| AsId(*id)).filter(|id| *id != own) {
            if !authorities.contains_key(&id) {
                let message = format!("admits AS {}, but none of the authorities is that AS's", id.0);
                let file = files.first().map_or(Path::new("[tls]"), |file| file);
                return Err(fault(file, format!("{message}; add its certificate to tls.authorities")));
            }
        }
        authorities.retain(|id, _| admits.contains(&id.0));
        Ok(Self { authorities, algorithms, denied, role })
    }

    fn check(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
        usage: KeyUsage,
    ) -> Result<(), Error> {
        self.check_at(leaf, chain, &[now], usage)
    }

    /// The same at the first of these times. The authority must be valid at one of them.
    fn check_at(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        times: &[UnixTime],
        usage: KeyUsage,
    ) -> Result<(), Error> {
        let now = times[0];
        if std::iter::once(leaf).chain(chain).any(|shown| self.denied.contains(&Fingerprint::of(shown))) {
            return Err(Error::InvalidCertificate(CertificateError::Revoked));
        }
        if self.role.is_some_and(|role| !role.is_of(leaf)) {
            return Err(Error::InvalidCertificate(CertificateError::InvalidPurpose));
        }
        let denied = Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure);
        let known = as_of(leaf).and_then(|id| self.authorities.get(&id)).ok_or(denied)?;
        let certificate = EndEntityCert::try_from(leaf)
            .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        let is_valid = |authority: &Authority| {
            let mut times = times.iter().map(|time| i64::try_from(time.as_secs()).unwrap_or(i64::MAX));
            times.any(|time| authority.valid.contains(&time))
        };
        let is_signed = |may: &dyn Fn(&Authority) -> bool| {
            let usable = known.iter().filter(|authority| may(authority));
            let anchors: Vec<_> = usable.map(|authority| authority.anchor.clone()).collect();
            certificate
                .verify_for_usage(self.algorithms.all, &anchors, chain, now, usage, None, None)
                .map(drop)
        };
        // A renewed authority has the key of the one before.
        let is_denied = |authority: &Authority| {
            let mut same = known.iter().filter(|other| other.has_key_of(authority));
            same.any(|other| self.denied.contains(&other.fingerprint))
        };
        if is_signed(&|authority| !is_denied(authority) && is_valid(authority)).is_ok() {
            return Ok(());
        }
        // The others only tell why.
        Err(Error::InvalidCertificate(match is_signed(&|_| true) {
            // Nobody need show the authority that signed their certificate.
            Ok(()) if is_signed(&|authority| !is_denied(authority)).is_err() => CertificateError::Revoked,
            Ok(()) => CertificateError::Other(OtherError(Arc::new(StaleAuthority))),
            Err(webpki::Error::CertExpired { .. }) => CertificateError::Expired,
            Err(webpki::Error::CertNotValidYet { .. }) => CertificateError::NotValidYet,
            Err(_) => CertificateError::UnknownIssuer,
        }))
    }

    fn signed(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, leaf, signature, &self.algorithms)
    }
}

/// TLS 1.2 is not offered, so nothing is ever signed by it.
fn no_tls12() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::General("TLS 1.2 is not spoken".to_owned()))
}

impl ServerCertVerifier for Neighbours {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(leaf, chain, now, KeyUsage::server_auth())?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed(message, leaf, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for Neighbours {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(leaf, chain, now, KeyUsage::client_auth())?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed(message, leaf, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{Issuer, KeyPair, SanType};

    use super::*;
    use crate::Keygen;

    /// The authority of AS 1, and an issuer of its certificates.
    fn authority() -> (CertificateDer<'static>, Issuer<'static, KeyPair>) {
        let (about, key) = (about(1), KeyPair::generate().expect("made"));
        let params = about.authority_params(10).expect("valid");
        let authority = params.self_signed(&key).expect("signed").der().clone();
        (authority, Issuer::new(params, key))
    }

    fn about(as_id: u32) -> Keygen<'static> {
        Keygen { as_id, folder: Path::new(""), name: "host", days: 20 }
    }

    /// A certificate that names these AS's.
    fn leaf(issuer: &Issuer<'static, KeyPair>, names: &[u32]) -> CertificateDer<'static> {
        let mut params = about(names[0]).host_params().expect("valid");
        let uri = |id: &u32| SanType::URI(uri_of(*id).try_into().expect("a URI"));
        params.subject_alt_names = names.iter().map(uri).collect();
        params.signed_by(&KeyPair::generate().expect("made"), issuer).expect("signed").der().clone()
    }

    /// Whether a side that knows this authority accepts the certificate `hours` from now, without those on a deny list.
    fn check(
        authority: &CertificateDer<'_>,
        denied: &[&CertificateDer<'_>],
        leaf: &CertificateDer<'_>,
        hours: i64,
    ) -> Result<(), Error> {
        let mut neighbours = Neighbours::only(authority, AsId(1)).expect("an authority");
        neighbours.denied = denied.iter().map(|denied| Fingerprint::of(denied)).collect();
        let now = UnixTime::now().as_secs().checked_add_signed(hours * 3_600).expect("in range");
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
        let shown = std::slice::from_ref(authority);
        // With the authority among what is shown, and without.
        [
            (KeyUsage::client_auth(), shown),
            (KeyUsage::server_auth(), shown),
            (KeyUsage::client_auth(), &shown[..0]),
        ]
        .into_iter()
        .map(|(usage, chain)| neighbours.check(leaf, chain, now, usage))
        .reduce(|one, other| {
            // Errors of our own are never equal.
            let (one_text, other_text) = (format!("{one:?}"), format!("{other:?}"));
            assert_eq!(one_text, other_text, "what else is shown makes no difference");
            one
        })
        .expect("answers")
    }

    #[test]
    fn a_certificate_is_believed_in_its_time_only() {
        let (authority, issuer) = authority();
        let good = leaf(&issuer, &[1]);
        let at = |hours| check(&authority, &[], &good, hours);
        assert_eq!(at(0), Ok(()));
        assert_eq!(at(21 * 24), Err(Error::InvalidCertificate(CertificateError::Expired)));
        assert_eq!(at(-2), Err(Error::InvalidCertificate(CertificateError::NotValidYet)));
    }

    #[test]
    fn an_authority_is_believed_in_its_time_only() {
        let (old, issuer) = authority();
        let good = leaf(&issuer, &[1]);
        let at = |hours| check(&old, &[], &good, hours);
        assert_eq!(at(9 * 24), Ok(()));
        let refused = at(11 * 24).expect_err("its authority has expired");
        let text = crate::explain(&refused);
        assert!(text.contains("authority") && text.contains("has expired"), "{refused}: {text}");
        let mut neighbours = Neighbours::only(&old, AsId(1)).expect("an authority");
        let later = Duration::from_secs(UnixTime::now().as_secs() + 11 * 86_400);
        let later = UnixTime::since_unix_epoch(later);
        // Another fault of a certificate is told as ever.
        let (_, other) = authority();
        let unknown = Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let answer = neighbours.check(&leaf(&other, &[1]), &[], later, KeyUsage::server_auth());
        assert_eq!(answer, Err(unknown));
        // Its next certificate has the same key, and both may be known.
        let new = about(1).authority_params(30).expect("valid").self_signed(issuer.key()).expect("signed");
        let next = Authority::read(new.der(), Path::new("")).expect("an authority");
        let next_print = next.fingerprint.clone();
        neighbours.authorities.entry(AsId(1)).or_default().push(next);
        assert_eq!(neighbours.check(&good, &[], later, KeyUsage::server_auth()), Ok(()));
        // A deny list that names one of them denies the key.
        neighbours.denied.insert(next_print);
        let answer = neighbours.check(&good, &[], UnixTime::now(), KeyUsage::server_auth());
        assert_eq!(answer, Err(Error::InvalidCertificate(CertificateError::Revoked)));
    }

    /// A session began before the authority's next certificate was made.
    #[test]
    fn an_authority_that_is_renewed_or_expires_ends_no_session() {
        let (old, issuer) = authority();
        let good = leaf(&issuer, &[1]);
        let mut neighbours = Neighbours::only(&old, AsId(1)).expect("an authority");
        let [began, now, later] = [0, 2, 4].map(|hours| UnixTime::now().as_secs() + hours * 3_600);
        let time = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let known = neighbours.authorities.get_mut(&AsId(1)).expect("known");
        known[0].valid = now as i64 - 60..=now as i64 + 60;
        let at = |times: &[u64]| {
            let times: Vec<_> = times.iter().map(|seconds| time(*seconds)).collect();
            neighbours.check_at(&good, &[], &times, KeyUsage::server_auth()).is_ok()
        };
        assert!(!at(&[began]) && at(&[now]) && !at(&[later]), "for new sessions");
        assert!(at(&[began, now]) && at(&[now, later]) && !at(&[began, later]), "for those under way");
    }

    #[test]
    fn an_authority_signs_for_its_own_as_only() {
        let (authority, issuer) = authority();
        for names in [&[9][..], &[1, 9], &[9, 1], &[1, 1]] {
            let answer = check(&authority, &[], &leaf(&issuer, names), 0);
            let refused = Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure);
            assert_eq!(answer, Err(refused), "{names:?}");
        }
    }

    #[test]
    fn a_deny_list_names_authorities_too() {
        let (authority, issuer) = authority();
        let (good, other) = (leaf(&issuer, &[1]), leaf(&issuer, &[1]));
        assert_eq!(check(&authority, &[&other], &good, 0), Ok(()));
        for denied in [&good, &authority] {
            let answer = check(&authority, &[denied], &good, 0);
            assert_eq!(answer, Err(Error::InvalidCertificate(CertificateError::Revoked)));
        }
    }
}
