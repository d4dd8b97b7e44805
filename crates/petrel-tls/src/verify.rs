//! Whom a connection trusts: verifiers of certificates and of raw public keys.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};
use std::{fmt, iter};

use petrel::security::SecurityError;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    WebPkiSupportedAlgorithms, verify_tls13_signature, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError,
    PeerIncompatible, RootCertStore, SignatureScheme,
};

use crate::identity::{Certificate, Fingerprint};
use crate::known_peers::KnownPeers;

/// The SPIFFE ID that an opener expects of the acceptor: an ID, or all of a trust domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpiffePattern(String);

impl SpiffePattern {
    /// Reads `spiffe://domain/path`, or `spiffe://domain` for the whole domain.
    ///
    /// # Errors
    /// The text is no SPIFFE ID.
    pub(crate) fn parse(text: &str) -> Result<Self, SecurityError> {
        let refused = |why| Err(SecurityError::new(format!("`{text}` is no SPIFFE ID: {why}")));
        let Some(rest) = text.strip_prefix("spiffe://") else {
            return refused("it begins with `spiffe://`");
        };
        let (domain, path) = rest.split_once('/').unwrap_or((rest, "-"));
        let is_domain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._".contains(&byte);
        if domain.is_empty() || !domain.bytes().all(is_domain) {
            return refused("a trust domain has lower-case letters, digits, `-`, `.` and `_`");
        }
        let is_path = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let is_segment = |segment: &str| !segment.is_empty() && segment.bytes().all(is_path);
        if !path.split('/').all(is_segment) {
            return refused("a path has no empty parts, and letters, digits, `-`, `.` and `_`");
        }
        Ok(Self(text.to_owned()))
    }

    /// Returns true if the ID is the expected ID, or an ID of the expected trust domain.
    pub(crate) fn matches(&self, id: &str) -> bool {
        let is_domain = !self.0["spiffe://".len()..].contains('/');
        match id.strip_prefix(self.0.as_str()) {
            Some("") => true,
            Some(rest) => is_domain && rest.starts_with('/'),
            None => false,
        }
    }
}

impl fmt::Display for SpiffePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Wraps a refusal of Petrel's own, whose text comes out of TLS unchanged.
fn refusal(error: SecurityError) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error))))
}

/// Whom a process trusts, as an opener and as an acceptor.
#[derive(Debug)]
pub(crate) struct Trust {
    pub(crate) peers: Peers,
    pub(crate) revoked: Arc<Revoked>,
    pub(crate) algorithms: WebPkiSupportedAlgorithms,
}

/// The revoked certificates and raw keys. The set outlives a change of the certificates and keys, and changes beside broken ones.
#[derive(Debug, Default)]
pub(crate) struct Revoked(RwLock<HashSet<Fingerprint>>);

impl Revoked {
    /// Takes the place of the former. Returns true if that is a change.
    pub(crate) fn replace(&self, all: HashSet<Fingerprint>) -> bool {
        let mut former = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let is_new = *former != all;
        *former = all;
        is_new
    }

    fn check(&self, fingerprint: Fingerprint) -> Result<(), SecurityError> {
        match self.0.read().unwrap_or_else(PoisonError::into_inner).contains(&fingerprint) {
            true => Err(SecurityError::new(format!(
                "{fingerprint} is revoked here; give the peer another certificate or key"
            ))),
            false => Ok(()),
        }
    }
}

/// The proof of identity that peers give.
#[derive(Debug)]
pub(crate) enum Peers {
    /// By certificates of these authorities.
    Certificates {
        anchors: Arc<RootCertStore>,
        /// The SPIFFE ID of acceptors; without one, their certificate has the name that was dialled.
        expected: Option<SpiffePattern>,
        /// rustls's check of openers, against the same authorities.
        openers: Arc<dyn ClientCertVerifier>,
    },
    /// By raw public keys (RFC 7250).
    RawKeys(KnownPeers),
}

impl Trust {
    fn is_of_raw_keys(&self) -> bool {
        matches!(self.peers, Peers::RawKeys(_))
    }

    /// Checks a peer again after the handshake.
    pub(crate) fn check_still(&self, fingerprint: Fingerprint) -> Result<(), SecurityError> {
        self.revoked.check(fingerprint)?;
        match &self.peers {
            Peers::Certificates { .. } => Ok(()),
            Peers::RawKeys(known) => known.check_client(fingerprint),
        }
    }

    /// Checks a certificate, the authorities behind the certificate, or a raw key against the revoked fingerprints.
    fn check_revoked(
        &self,
        proof: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> Result<(), Error> {
        let mut all = iter::once(proof).chain(intermediates);
        all.try_for_each(|one| self.revoked.check(Fingerprint::of(one))).map_err(refusal)
    }

    /// Checks that the peer has the private key of its certificate or raw key.
    fn verify_signature(
        &self,
        message: &[u8],
        proof: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match &self.peers {
            Peers::Certificates { .. } => {
                verify_tls13_signature(message, proof, signature, &self.algorithms)
            }
            Peers::RawKeys(_) => {
                let key = SubjectPublicKeyInfoDer::from(proof.as_ref());
                verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
            }
        }
    }
}

fn check_spiffe(
    expected: &SpiffePattern,
    certificate: &CertificateDer<'_>,
) -> Result<(), SecurityError> {
    let text = match Certificate::parse(certificate)?.identity.spiffe_id {
        Some(id) if expected.matches(&id) => return Ok(()),
        Some(id) => format!("the peer is {id}, and {expected} is expected"),
        None => format!("the peer's certificate has no SPIFFE ID, and {expected} is expected"),
    };
    Err(SecurityError::new(text))
}

/// The methods that verifiers of either side share. TLS 1.2 is not built, so rustls asks for no signatures of TLS 1.2.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _proof: &CertificateDer<'_>,
            _signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(Error::PeerIncompatible(PeerIncompatible::SupportedVersionsExtensionRequired))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            proof: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.verify_signature(message, proof, signature)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.algorithms.supported_schemes()
        }

        fn requires_raw_public_keys(&self) -> bool {
            self.is_of_raw_keys()
        }
    };
}

impl ServerCertVerifier for Trust {
    fn verify_server_cert(
        &self,
        proof: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check_revoked(proof, intermediates)?;
        match &self.peers {
            Peers::Certificates { anchors, expected, .. } => {
                let certificate = ParsedCertificate::try_from(proof)?;
                let algorithms = self.algorithms.all;
                verify_server_cert_signed_by_trust_anchor(
                    &certificate,
                    anchors,
                    intermediates,
                    now,
                    algorithms,
                )?;
                match expected {
                    Some(expected) => check_spiffe(expected, proof).map_err(refusal)?,
                    None => verify_server_name(&certificate, server_name)?,
                }
            }
            Peers::RawKeys(known) => {
                let name = server_name.to_str();
                known.check_server(&name, Fingerprint::of(proof)).map_err(refusal)?;
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    signatures!();
}

/// Client authentication is offered and mandatory: the trait's default.
impl ClientCertVerifier for Trust {
    /// Names of authorities in the request would tell strangers whom this process trusts.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        proof: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check_revoked(proof, intermediates)?;
        match &self.peers {
            Peers::Certificates { openers, .. } => {
                openers.verify_client_cert(proof, intermediates, now)
            }
            Peers::RawKeys(known) => {
                known.check_client(Fingerprint::of(proof)).map_err(refusal)?;
                Ok(ClientCertVerified::assertion())
            }
        }
    }

    signatures!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spiffe_pattern__matches_an_id_or_a_domain() {
        let matches = |pattern: &str, id: &str| SpiffePattern::parse(pattern).unwrap().matches(id);
        assert!(matches("spiffe://prod/web", "spiffe://prod/web"));
        assert!(!matches("spiffe://prod/web", "spiffe://prod/web/2"));
        assert!(!matches("spiffe://prod/web", "spiffe://prod/website"));
        assert!(!matches("spiffe://prod/web", "spiffe://prod"));
        assert!(matches("spiffe://prod", "spiffe://prod/web"));
        assert!(matches("spiffe://prod", "spiffe://prod"));
        assert!(!matches("spiffe://prod", "spiffe://prod.example/web"));
        assert!(!matches("spiffe://prod", "spiffe://staging/prod"));
    }

    #[test]
    fn spiffe_pattern__of_another_text() {
        let bad = [
            "prod/web",
            "https://prod/web",
            "spiffe://",
            "spiffe:///web",
            "spiffe://Prod/web",
            "spiffe://prod:1/web",
            "spiffe://prod/",
            "spiffe://prod//web",
            "spiffe://prod/w b",
        ];
        for text in bad {
            let error = SpiffePattern::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{text}` is no SPIFFE ID: ")), "{error}");
        }
    }
}
