//! The time in which a certificate is valid.

use std::ops::RangeInclusive;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use time::{OffsetDateTime, UtcOffset};
use x509_parser::parse_x509_certificate;

use crate::tls::{Authority, Trust};

/// From this long before its end on, the log asks for another certificate. Certificate services that renew by
/// themselves, such as Let's Encrypt's, do so 30 days before.
const WARNED_BEFORE: time::Duration = time::Duration::days(30);

/// The first and the last second in which a certificate is valid (RFC 5280, 4.1.2.5). Seconds since 1970.
pub(crate) type Validity = RangeInclusive<i64>;

/// The time of this certificate. None if it cannot be read.
pub(crate) fn validity(certificate: &CertificateDer<'_>) -> Option<Validity> {
    let (_, certificate) = parse_x509_certificate(certificate).ok()?;
    let validity = certificate.validity();
    Some(validity.not_before.timestamp()..=validity.not_after.timestamp())
}

/// When the first certificate of a chain expires. None if none of them can be read. A certificate that ended before 1970
/// ended then.
pub(crate) fn expires(chain: &[CertificateDer<'_>]) -> Option<SystemTime> {
    let ends = chain.iter().filter_map(|certificate| Some(*validity(certificate)?.end()));
    let seconds = u64::try_from(ends.min()?).unwrap_or(0);
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

impl Trust {
    /// Lines for the log about what expires within 30 days or has expired: this side's certificate, which was read from
    /// `file`, and the authorities.
    pub fn expiring(&self, file: &Path) -> Vec<String> {
        let now = OffsetDateTime::now_utc();
        let own = self.expires.and_then(|end| told(end.into(), now)).map(|told| {
            let file = file.display();
            format!(
                "the certificate {file} {told}; make the next one with `isthmus router keygen` and reload"
            )
        });
        let authorities = self.neighbours.authorities.iter().flat_map(|(id, known)| {
            let told = |authority: &Authority| {
                let end = OffsetDateTime::from_unix_timestamp(*authority.valid.end()).ok()?;
                let (file, id, told) = (authority.file.display(), id.0, told(end, now)?);
                Some(format!(
                    "the authority {file} {told}; get the next one (as{id}.pem) from AS {id}, add it to \
                     tls.authorities and reload"
                ))
            };
            known.iter().filter_map(told)
        });
        own.into_iter().chain(authorities).collect()
    }
}

fn told(end: OffsetDateTime, now: OffsetDateTime) -> Option<String> {
    let (date, left) = (end.to_offset(UtcOffset::UTC).date(), end - now);
    match left.whole_days() {
        _ if left > WARNED_BEFORE => None,
        _ if left.is_negative() => Some(format!("expired on {date}, so it is accepted no more")),
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
            assert_eq!(told.len(), usize::from(words.is_some()), "{days}: {told:?}");
            assert!(words.is_none_or(|words| told[0].contains(words)), "{told:?}");
            let left = trust.expires.expect("an end");
            let left = left.duration_since(SystemTime::now()).expect("in future").as_secs();
            assert!(
                (86_400 * u64::from(days - 1)..=86_400 * u64::from(days)).contains(&left),
                "{days}: {left}"
            );
        }
    }

    #[test]
    fn an_authority_that_ends_soon_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let about = Keygen { as_id: 1, folder: folder.path(), name: "host", days: 90 };
        let made = about.make().expect("made");
        let files = Files {
            certificate: made.certificate,
            key: made.key,
            authorities: vec![made.authority.clone()],
            denied: None,
        };
        let expiring = |days| {
            let key = rcgen::KeyPair::generate().expect("made");
            let authority = about
                .authority_params(days)
                .and_then(|params| params.self_signed(&key).map_err(crate::keygen::unusable));
            std::fs::write(&made.authority, authority.expect("signed").pem()).expect("written");
            let trust = Trust::load(&files, AsId(1), &[1], &[b"any"]).expect("good files");
            trust.expiring(&files.certificate)
        };
        for (days, words) in [(29, "expires in 28 days"), (0, "expired on")] {
            let told = expiring(days);
            assert!(told.len() == 1 && told[0].contains(words), "{told:?}");
            assert!(told[0].contains("as1.pem") && told[0].contains("from AS 1"), "{told:?}");
        }
        assert_eq!(expiring(31), Vec::<String>::new());
    }

    #[test]
    fn a_certificate_that_has_ended_is_told_too() {
        let now = OffsetDateTime::from_unix_timestamp(1_000_000_000).expect("2001");
        let told = told(now - time::Duration::HOUR, now).expect("ended");
        assert!(told.contains("expired on 2001-09-09"), "{told}");
    }
}
