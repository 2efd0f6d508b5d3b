//! The end of a certificate's time.

use std::path::Path;
use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use time::{OffsetDateTime, UtcOffset};
use x509_parser::parse_x509_certificate;

use crate::tls::Trust;

/// From this long before its end on, the log asks for another certificate. Certificate services that renew by
/// themselves, such as Let's Encrypt's, do so 30 days before.
const WARNED_BEFORE: time::Duration = time::Duration::days(30);

/// When the first certificate of a chain expires. None if none of them can be read. A certificate that ended before 1970
/// ended then.
pub(crate) fn expires(chain: &[CertificateDer<'_>]) -> Option<SystemTime> {
    let ends = chain.iter().filter_map(|certificate| {
        let (_, certificate) = parse_x509_certificate(certificate).ok()?;
        Some(certificate.validity().not_after.timestamp())
    });
    let seconds = u64::try_from(ends.min()?).unwrap_or(0);
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

impl Trust {
    /// A line for the log if this side's certificate, which was read from `file`, expires within 30 days or has expired.
    pub fn expiring(&self, file: &Path) -> Option<String> {
        let told = told(self.expires?.into(), OffsetDateTime::now_utc())?;
        let file = file.display();
        Some(format!(
            "the certificate {file} {told}; make the next one with `isthmus router keygen` and reload"
        ))
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
    use isthmus_wire::AsId;

    use super::*;
    use crate::{Files, Keygen};

    #[test]
    fn a_certificate_that_ends_soon_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        for (days, words) in [(31, None), (30, Some("expires in 29 days")), (2, Some("expires in 1 day, on"))]
        {
            let made = Keygen { as_id: 1, folder: folder.path(), name: &format!("r{days}"), days }
                .make()
                .expect("made");
            let files = Files {
                certificate: made.certificate,
                key: made.key,
                authorities: vec![made.authority],
                denied: None,
            };
            let trust = Trust::load(&files, AsId(1), &[1], &[b"any"]).expect("good files");
            let told = trust.expiring(&files.certificate);
            assert_eq!(told.is_some(), words.is_some(), "{days}: {told:?}");
            assert!(
                words.is_none_or(|words| told.as_ref().is_some_and(|told| told.contains(words))),
                "{told:?}"
            );
            let left = trust.expires.expect("an end");
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
