//! The end of a certificate's time.

use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use time::{OffsetDateTime, UtcOffset};
use x509_parser::parse_x509_certificate;

use crate::tls::{Files, TrustError, certificates};

/// From this long before its end on, the log asks for another certificate. Certificate services that renew by
/// themselves, such as Let's Encrypt's, do so 30 days before.
const WARNED_BEFORE: time::Duration = time::Duration::days(30);

/// When the first certificate of a chain expires. None if none of them can be read.
fn end_of(chain: &[CertificateDer<'_>]) -> Option<OffsetDateTime> {
    let ends = chain.iter().filter_map(|certificate| {
        let (_, certificate) = parse_x509_certificate(certificate).ok()?;
        OffsetDateTime::from_unix_timestamp(certificate.validity().not_after.timestamp()).ok()
    });
    ends.min()
}

/// [`end_of`] for the clock of the system. A certificate that ended before 1970 ended then.
pub(crate) fn expires(chain: &[CertificateDer<'_>]) -> Option<SystemTime> {
    let seconds = end_of(chain)?.unix_timestamp();
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

impl Files {
    /// A line for the log if the certificate expires within 30 days, or has expired.
    ///
    /// # Errors
    /// The file is no certificate.
    pub fn expiring(&self) -> Result<Option<String>, TrustError> {
        let end = end_of(&certificates(&self.certificate)?);
        Ok(end.and_then(|end| told(end, OffsetDateTime::now_utc())).map(|told| {
            format!(
                "the certificate {} {told}; make the next one with `isthmus router keygen` and reload",
                self.certificate.display()
            )
        }))
    }
}

fn told(end: OffsetDateTime, now: OffsetDateTime) -> Option<String> {
    let (date, left) = (end.to_offset(UtcOffset::UTC).date(), end - now);
    match left.whole_days() {
        _ if left > WARNED_BEFORE => None,
        _ if left.is_negative() => Some(format!("expired on {date}, so nobody accepts it")),
        0 => Some(format!("expires in less than a day, on {date}")),
        1 => Some(format!("expires in 1 day, on {date}")),
        days => Some(format!("expires in {days} days, on {date}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Keygen;

    #[test]
    fn a_certificate_that_ends_soon_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        for (days, words) in [(31, None), (30, Some("expires in 29 days")), (2, Some("expires in 1 day, on"))]
        {
            let made = Keygen { as_id: 1, folder: folder.path(), name: &format!("r{days}"), days }
                .make()
                .expect("made");
            let files =
                Files { certificate: made.certificate, key: made.key, authorities: Vec::new(), denied: None };
            let told = files.expiring().expect("a certificate");
            assert_eq!(told.is_some(), words.is_some(), "{days}: {told:?}");
            assert!(
                words.is_none_or(|words| told.as_ref().is_some_and(|told| told.contains(words))),
                "{told:?}"
            );
            let left = expires(&certificates(&files.certificate).expect("read")).expect("an end");
            let left = left.duration_since(SystemTime::now()).expect("in future").as_secs();
            assert!(
                (86_400 * u64::from(days - 1)..=86_400 * u64::from(days)).contains(&left),
                "{days}: {left}"
            );
        }
    }

    #[test]
    fn a_certificate_that_has_ended_is_told_too() {
        let now = OffsetDateTime::from_unix_timestamp(1_000_000_000).expect("2001");
        let told = told(now - time::Duration::HOUR, now).expect("ended");
        assert!(told.contains("expired on 2001-09-09"), "{told}");
    }
}
