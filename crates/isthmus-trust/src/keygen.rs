//! Makes the certificates of a site: its authority's, and those of routers and hosts that the authority signs.

use std::fmt;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use time::{Date, Duration, OffsetDateTime};
use x509_parser::parse_x509_certificate;

use crate::role::{Fingerprint, Role};
use crate::tls::uri_of;

const AUTHORITY_DAYS: i64 = 3650;
/// Longest name of a router's or host's certificate: file systems take 255 bytes, with the suffix. Bytes.
const NAME_MAX: usize = 200;

/// The certificates to make.
#[derive(Clone, Debug)]
pub struct Keygen<'a> {
    /// The AS that they name.
    pub as_id: u32,
    /// The folder for the files.
    pub folder: &'a Path,
    /// Name of the router's files.
    pub name: &'a str,
    /// How long the router's certificate is valid.
    pub days: u32,
}

/// The files that were made. Its text says what to do with them.
#[derive(Clone, Debug)]
pub struct Made {
    as_id: u32,
    /// The authority's certificate: the one file that others need.
    pub authority: PathBuf,
    /// The router's certificate.
    pub certificate: PathBuf,
    /// The router's private key.
    pub key: PathBuf,
    /// The certificate's fingerprint, by which a deny list names it.
    pub fingerprint: Fingerprint,
    /// The day on which the authority expires, if the router's certificate would be valid for longer.
    ends_early: Option<Date>,
}

impl Keygen<'_> {
    /// Makes the files. An existing authority is used. A router's files are never overwritten. The certificate is
    /// accepted for all roles; see [`Keygen::make_as`].
    pub fn make(&self) -> io::Result<Made> {
        self.make_as(None)
    }

    /// Like [`Keygen::make`], but the certificate is accepted for `role` only.
    pub fn make_as(&self, role: Option<Role>) -> io::Result<Made> {
        check_name(self.name).map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(self.folder)
            .map_err(|error| at(self.folder, &error))?;
        let place = |name: &str| self.folder.join(name);
        let authority = place(&format!("as{}.pem", self.as_id));
        let authority_key = place(&format!("as{}.key", self.as_id));
        let (certificate, key) = (place(&format!("{}.pem", self.name)), place(&format!("{}.key", self.name)));
        if certificate == authority {
            let message = format!("{} is the authority's own file; use another --name", authority.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        if let Some(there) = [&certificate, &key].into_iter().find(|file| file.exists()) {
            let message =
                format!("{} is there already; move it away, or use another --name", there.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
        }
        let (issuer, end) = self.authority(&authority, &authority_key)?;
        let router_key = KeyPair::generate().map_err(unusable)?;
        let mut params = self.host_params()?;
        if let Some(role) = role {
            params.subject_alt_names.push(SanType::URI(role.uri().try_into().map_err(unusable)?));
        }
        let signed = params.signed_by(&router_key, &issuer).map_err(unusable)?;
        write(&key, 0o600, &router_key.serialize_pem())?;
        write(&certificate, 0o644, &signed.pem())?;
        let fingerprint = Fingerprint::of(signed.der());
        let end = end.to_offset(time::UtcOffset::UTC).date();
        let ends_early = (end < params.not_after.date()).then_some(end);
        Ok(Made { as_id: self.as_id, authority, certificate, key, fingerprint, ends_early })
    }

    /// The AS's authority, and when it expires. It is made if it is missing. If only its certificate is missing, it
    /// gets another one with the same name and key, so that what it has signed stays valid.
    fn authority(
        &self,
        file: &Path,
        key_file: &Path,
    ) -> io::Result<(Issuer<'static, KeyPair>, OffsetDateTime)> {
        let params = self.authority_params(AUTHORITY_DAYS)?;
        let key = if key_file.exists() {
            let text = std::fs::read_to_string(key_file).map_err(|error| at(key_file, &error))?;
            KeyPair::from_pem(&text).map_err(|error| at(key_file, &unusable(error)))?
        } else if file.exists() {
            let message = format!(
                "{} is there, but its key {} is not; copy the key here from where the authority was made, or move the \
                 certificate away and run this again, which makes another authority, then give its certificate to the \
                 other sites",
                file.display(),
                key_file.display()
            );
            return Err(io::Error::new(io::ErrorKind::NotFound, message));
        } else {
            let key = KeyPair::generate().map_err(unusable)?;
            write(key_file, 0o600, &key.serialize_pem())?;
            key
        };
        if !file.exists() {
            write(file, 0o644, &params.self_signed(&key).map_err(unusable)?.pem())?;
            let end = params.not_after;
            return Ok((Issuer::new(params, key), end));
        }
        let Some(end) = end_of(file, &key) else {
            let message = format!(
                "{} is not the certificate of {}; put the two together that belong together, or move the certificate \
                 away and run this again, which makes another one of this key",
                file.display(),
                key_file.display()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        };
        if end < OffsetDateTime::now_utc() {
            let message = format!(
                "{0} has expired, and nobody would accept what it signs; move it away and run this again, which makes \
                 the next one with the same key, then give {0} to the other sites",
                file.display()
            );
            return Err(io::Error::other(message));
        }
        Ok((Issuer::new(params, key), end))
    }

    /// The contents of the router's or host's certificate.
    pub(crate) fn host_params(&self) -> io::Result<CertificateParams> {
        let mut params = self.params(&format!("{} of AS {}", self.name, self.as_id), i64::from(self.days))?;
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        Ok(params)
    }

    /// The contents of the authority's certificate, valid for `days` days.
    pub(crate) fn authority_params(&self, days: i64) -> io::Result<CertificateParams> {
        let mut params = self.params(&format!("Isthmus authority of AS {}", self.as_id), days)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Ok(params)
    }

    fn params(&self, common_name: &str, days: i64) -> io::Result<CertificateParams> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        let uri = uri_of(self.as_id).try_into().map_err(unusable)?;
        params.subject_alt_names = vec![SanType::URI(uri)];
        params.use_authority_key_identifier_extension = true;
        // The other site's clock may be a little behind.
        params.not_before = OffsetDateTime::now_utc() - Duration::HOUR;
        params.not_after = OffsetDateTime::now_utc() + Duration::days(days);
        Ok(params)
    }
}

/// When the last of the certificates in this file expires that belong to `key`. None if no certificate does.
fn end_of(file: &Path, key: &KeyPair) -> Option<OffsetDateTime> {
    let certificates = CertificateDer::pem_file_iter(file).ok()?.flatten();
    let ends = certificates.filter_map(|certificate| {
        let (_, certificate) = parse_x509_certificate(&certificate).ok()?;
        let is_its = *certificate.public_key().subject_public_key.data == *key.public_key_raw();
        is_its.then(|| certificate.validity().not_after.to_datetime())
    });
    ends.max()
}

pub(crate) fn unusable(error: rcgen::Error) -> io::Error {
    io::Error::other(format!("cannot make a certificate: {error}"))
}

/// Says whether certificates and their files can have this name. The error says what a name must be.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_file = !name.contains('/') && !name.starts_with('.') && !name.chars().any(char::is_control);
    if is_file && (1..=NAME_MAX).contains(&name.len()) {
        return Ok(());
    }
    Err(format!(
        "{name:?} cannot be the name of files: expected 1 to {NAME_MAX} bytes without \"/\", not beginning with \".\""
    ))
}

/// Names the file that an error is about.
fn at(file: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", file.display()))
}

/// Writes a new file. A file that could not be written whole is removed: it would keep the next attempt from success.
fn write(file: &Path, mode: u32, text: &str) -> io::Result<()> {
    let mut open = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(file)
        .map_err(|error| at(file, &error))?;
    open.write_all(text.as_bytes()).map_err(|error| {
        let _ = std::fs::remove_file(file);
        at(file, &error)
    })
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authority = self.authority.display();
        let name = self.authority.file_name().map_or_else(String::new, |name| name.display().to_string());
        writeln!(f, "In the configuration here:")?;
        writeln!(f, "  [tls]\n  certificate = \"{}\"", self.certificate.display())?;
        writeln!(f, "  key = \"{}\"\n  authorities = [ the other sites' ]\n", self.key.display())?;
        writeln!(f, "Copy {authority} to the other site, over a way that nobody can tamper with,")?;
        writeln!(f, "and there add \"{name}\" to tls.authorities and {} to admits.", self.as_id)?;
        writeln!(f, "Keys (*.key) stay here. If this one is lost, other sites add to their deny lists:")?;
        writeln!(f, "  {}", self.fingerprint)?;
        let Some(end) = self.ends_early else { return Ok(()) };
        writeln!(
            f,
            "\n{authority} expires on {end}, and nobody accepts this certificate after that. Before then, move"
        )?;
        writeln!(f, "it away and run this with another --name, which makes the authority's next certificate.")
    }
}
