//! Identities of peers, read from certificates and raw public keys, and their fingerprints.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use petrel::security::{PeerIdentity, SecurityError};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;
use x509_parser::time::ASN1Time;

/// Base 64, written without padding as `ssh` does, and read with or without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// SHA-256 of a certificate, or of a raw public key. Its text is `sha256:` and base 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// Returns the fingerprint of a certificate in DER, or of a public key (SubjectPublicKeyInfo) in DER.
    pub fn of(der: &[u8]) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, der).as_ref());
        Self(bytes)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", BASE64.encode(self.0))
    }
}

impl FromStr for Fingerprint {
    type Err = SecurityError;

    fn from_str(text: &str) -> Result<Self, SecurityError> {
        let refused = || {
            let text = format!("`{text}` is no fingerprint: `sha256:` and 32 bytes in base 64");
            SecurityError::new(text)
        };
        let digits = text.strip_prefix("sha256:").ok_or_else(refused)?;
        let bytes = BASE64.decode(digits).map_err(|_| refused())?;
        bytes.try_into().map(Self).map_err(|_| refused())
    }
}

/// The fields of a certificate that Petrel uses.
#[derive(Debug)]
pub(crate) struct Certificate {
    pub(crate) identity: PeerIdentity,
    /// The IP addresses, as text.
    pub(crate) addresses: Vec<String>,
    /// Start of the validity, in seconds since 1970.
    pub(crate) begins_at: u64,
    /// End of the validity, in seconds since 1970.
    pub(crate) expires_at: u64,
}

impl Certificate {
    /// Reads a certificate in DER.
    ///
    /// # Errors
    /// The bytes are no certificate, or have two SPIFFE IDs: an identity must be one.
    pub(crate) fn parse(der: &[u8]) -> Result<Self, SecurityError> {
        let unread = |_| SecurityError::new("the certificate is no X.509 certificate in DER");
        let (_, certificate) = X509Certificate::from_der(der).map_err(unread)?;
        let seconds = |time: ASN1Time| u64::try_from(time.timestamp()).unwrap_or(0);
        let validity = certificate.validity();
        let expires_at = seconds(validity.not_after);
        let mut identity = PeerIdentity::default();
        identity.fingerprint = Some(Fingerprint::of(der).0);
        identity.expires_at = Some(expires_at);
        let names = certificate
            .subject_alternative_name()
            .map_err(|_| SecurityError::new("the certificate's names cannot be read"))?;
        let (mut ids, mut addresses) = (Vec::new(), Vec::new());
        for name in names.iter().flat_map(|names| &names.value.general_names) {
            match name {
                GeneralName::DNSName(name) => identity.dns_names.push((*name).to_owned()),
                GeneralName::IPAddress(bytes) => addresses.extend(address_text(bytes)),
                GeneralName::URI(uri) if uri.starts_with("spiffe://") => ids.push(*uri),
                _ => {}
            }
        }
        if ids.len() > 1 {
            let text = "the certificate has two SPIFFE IDs; issue it with one";
            return Err(SecurityError::new(text));
        }
        identity.spiffe_id = ids.first().map(|id| (*id).to_owned());
        Ok(Self { identity, addresses, begins_at: seconds(validity.not_before), expires_at })
    }
}

fn address_text(bytes: &[u8]) -> Option<String> {
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok().map(|ip| ip.to_string())
}

pub(crate) fn of_raw_key(key: &[u8]) -> PeerIdentity {
    let mut identity = PeerIdentity::default();
    identity.fingerprint = Some(Fingerprint::of(key).0);
    identity
}

/// Returns a time in seconds since 1970 as text for people.
pub(crate) fn time_text(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|time| ASN1Time::from_timestamp(time).ok());
    time.and_then(|time| time.to_rfc2822().ok()).unwrap_or_else(|| format!("second {seconds}"))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, SanType};

    use super::*;

    #[test]
    fn parse__of_uris() {
        let parse = |uris: &[&str]| {
            let mut params = CertificateParams::default();
            let uris = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap()));
            params.subject_alt_names = uris.collect();
            let key = KeyPair::generate().unwrap();
            Certificate::parse(params.self_signed(&key).unwrap().der())
        };
        let id = |uris: &[&str]| parse(uris).unwrap().identity.spiffe_id;
        assert_eq!(id(&[]), None);
        assert_eq!(id(&["https://a", "spiffe://a/b"]).as_deref(), Some("spiffe://a/b"));
        let error = parse(&["spiffe://a/b", "spiffe://a/c"]).unwrap_err().to_string();
        assert_eq!(error, "the certificate has two SPIFFE IDs; issue it with one");
    }

    #[test]
    fn parse__of_other_bytes() {
        for bytes in [&[][..], &[0x30], &[0x30, 0x82, 0xff, 0xff], b"-----BEGIN CERTIFICATE-----"] {
            assert!(Certificate::parse(bytes).is_err());
        }
    }
}
