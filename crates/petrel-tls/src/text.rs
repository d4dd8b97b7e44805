//! TLS's errors as texts for people: the cause, and the remedy if there is one.

use petrel::security::SecurityError;
use rustls::{
    AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible, PeerMisbehaved,
};

use crate::identity::time_text;

pub(crate) fn of_connection(error: &Error) -> SecurityError {
    let text = match error {
        Error::InvalidCertificate(error) => return of_certificate(error),
        Error::AlertReceived(alert) => of_alert(*alert),
        Error::NoCertificatesPresented => {
            "the client has no certificate; start it with credentials of its own".to_owned()
        }
        Error::NoApplicationProtocol => {
            "the peer speaks another protocol than `petrel/1` over TLS".to_owned()
        }
        Error::PeerIncompatible(
            PeerIncompatible::SupportedVersionsExtensionRequired
            | PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
            | PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled,
        ) => "the peer offers no TLS 1.3, and Petrel no older version".to_owned(),
        Error::PeerIncompatible(PeerIncompatible::IncorrectCertificateTypeExtension) => {
            "one side has a raw key, the other a certificate; give both the same kind".to_owned()
        }
        Error::InvalidMessage(InvalidMessage::InvalidContentType)
        | Error::InappropriateMessage { .. }
        | Error::PeerMisbehaved(PeerMisbehaved::IllegalMiddleboxChangeCipherSpec) => {
            format!("the peer does not keep to TLS: {error}")
        }
        error => format!("TLS failed: {error}"),
    };
    SecurityError::new(text)
}

/// Returns the text of a refusal of the peer's certificate.
fn of_certificate(error: &CertificateError) -> SecurityError {
    let text = match error {
        CertificateError::Other(own) => own.to_string(),
        CertificateError::ExpiredContext { not_after, .. } => format!(
            "the peer's certificate expired on {}; renew it there",
            time_text(not_after.as_secs())
        ),
        CertificateError::NotValidYetContext { not_before, .. } => format!(
            "the peer's certificate is valid from {} only; compare the clocks of both hosts",
            time_text(not_before.as_secs())
        ),
        CertificateError::UnknownIssuer => {
            "no authority of ca.pem has issued the peer's certificate; add the peer's to ca.pem, or issue the \
             certificate anew"
                .to_owned()
        }
        CertificateError::BadSignature => {
            "a signature of the peer is by another key than its certificate says; ca.pem has perhaps an authority of the \
             same name, and the certificate is by another"
                .to_owned()
        }
        CertificateError::NotValidForNameContext { expected, presented } => format!(
            "the peer's certificate is for {}, and not for {}; issue it with that name, or connect by another",
            if presented.is_empty() { "no name".to_owned() } else { presented.join(", ") },
            expected.to_str()
        ),
        CertificateError::InvalidPurposeContext { required, .. } => format!(
            "the peer's certificate is for another purpose; issue it with the extended key usage {required:?}"
        ),
        error => format!("the peer's certificate is refused: {error}"),
    };
    SecurityError::new(text)
}

/// Returns the text of an alert: the peer's opinion of this end.
fn of_alert(alert: AlertDescription) -> String {
    let why = match alert {
        AlertDescription::CertificateExpired => "finds this certificate expired, or not yet valid",
        AlertDescription::UnknownCA => {
            "does not know the authority of this certificate; add it to the peer's ca.pem"
        }
        AlertDescription::CertificateRequired => "asks for a certificate, and this end has none",
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown => {
            "does not accept this certificate or key; its log says why"
        }
        AlertDescription::NoApplicationProtocol => "does not speak `petrel/1` over TLS",
        AlertDescription::ProtocolVersion => "offers no TLS 1.3",
        AlertDescription::HandshakeFailure => {
            "has nothing in common with this end: cipher suites, or the kind of keys"
        }
        alert => return format!("the peer ended TLS with the alert {alert:?}"),
    };
    format!("the peer {why}")
}
