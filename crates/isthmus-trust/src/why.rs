//! Explains a failed handshake: what must be changed, and at which of the two sites.

use rustls::{AlertDescription as Alert, CertificateError as Fault, Error};

use crate::tls::StaleAuthority;

/// Tells the administrator of this side what a handshake's `error` means.
///
/// The texts of rustls name what TLS saw ("received fatal alert: UnknownCA"), not what to do about it.
pub fn explain(error: &Error) -> String {
    let text = match error {
        Error::InvalidCertificate(Fault::Expired | Fault::ExpiredContext { .. }) => {
            "its certificate has expired; make it another there with `isthmus router keygen`"
        }
        Error::InvalidCertificate(Fault::Other(other)) if other.0.is::<StaleAuthority>() => {
            "the authority that signed its certificate has expired, or is not valid yet by this host's clock; get its \
             AS's next authority (the asN.pem), and add it to `authorities` here"
        }
        Error::InvalidCertificate(Fault::NotValidYet | Fault::NotValidYetContext { .. }) => {
            "its certificate is not valid yet; set the clocks of both hosts"
        }
        Error::InvalidCertificate(Fault::ApplicationVerificationFailure) => {
            "its certificate names an AS that is not admitted here; name that AS here, and its authority among \
             `authorities` (the asN.pem of `isthmus router keygen`)"
        }
        Error::InvalidCertificate(Fault::Revoked) => {
            "its certificate is on the deny list here; make it another there with `isthmus router keygen`"
        }
        Error::InvalidCertificate(Fault::UnknownIssuer) => {
            "its certificate is by none of the authorities that are named here; add its AS's to `authorities` \
             (the asN.pem of `isthmus router keygen`)"
        }
        Error::InvalidCertificate(Fault::InvalidPurpose | Fault::InvalidPurposeContext { .. }) => {
            "its certificate is that of another role, such as a mover's where a router's is needed; make it another \
             there with `isthmus router keygen --role`"
        }
        Error::AlertReceived(Alert::UnsupportedCertificate) => {
            "our certificate is that of another role there; make another with `isthmus router keygen --role`"
        }
        Error::NoCertificatesPresented => "it showed no certificate; give it one of `isthmus router keygen`",
        Error::AlertReceived(Alert::CertificateUnknown) => {
            "it does not trust our certificate; add our AS's authority (the asN.pem) to `authorities` there, or our \
             authority has expired there: give it the next asN.pem"
        }
        Error::AlertReceived(Alert::UnknownCA | Alert::BadCertificate) => {
            "it does not trust our certificate; add our AS's authority (the asN.pem) to `authorities` there"
        }
        Error::AlertReceived(Alert::AccessDenied) => {
            "it does not admit our AS; add it to `admits`, and its authority to `authorities`, there"
        }
        Error::AlertReceived(Alert::CertificateExpired) => {
            "our certificate has expired or is not valid yet there; make another with `isthmus router keygen`, or \
             set the clocks of both hosts"
        }
        Error::AlertReceived(Alert::CertificateRevoked) => {
            "our certificate is on the deny list there; make another with `isthmus router keygen`"
        }
        Error::AlertReceived(Alert::CertificateRequired) => {
            "it wants a certificate, and we showed none; make one with `isthmus router keygen`"
        }
        Error::NoApplicationProtocol | Error::AlertReceived(Alert::NoApplicationProtocol) => {
            "it is another kind of service, or another release of isthmus; is the port the right one?"
        }
        Error::InvalidMessage(_) | Error::InappropriateMessage { .. } => {
            "it speaks no TLS; is the port the right one, and is neither side plain?"
        }
        Error::PeerIncompatible(_) | Error::AlertReceived(Alert::ProtocolVersion) => {
            "it does not speak TLS 1.3, as every isthmus does; is the port the right one?"
        }
        other => return format!("TLS: {other}"),
    };
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_wrong_in_practice_names_the_file_or_side_to_change() {
        let cases = [
            (Error::AlertReceived(Alert::UnknownCA), "to `authorities` there"),
            (Error::AlertReceived(Alert::CertificateUnknown), "the next asN.pem"),
            (Error::AlertReceived(Alert::AccessDenied), "to `admits`"),
            (Error::AlertReceived(Alert::CertificateExpired), "make another"),
            (Error::AlertReceived(Alert::NoApplicationProtocol), "the right one"),
            (Error::InvalidCertificate(Fault::UnknownIssuer), "by none of the authorities"),
            (Error::InvalidCertificate(Fault::Expired), "has expired"),
            (Error::InvalidCertificate(Fault::ApplicationVerificationFailure), "not admitted here"),
            (Error::NoCertificatesPresented, "no certificate"),
        ];
        for (error, part) in cases {
            let text = explain(&error);
            assert!(text.contains(part) && !text.contains("fatal alert"), "{error}: {text}");
        }
        let rare = Error::AlertReceived(Alert::InternalError);
        assert!(explain(&rare).contains("InternalError"), "what has no words of ours is not hidden");
    }
}
