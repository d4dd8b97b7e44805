//! Configurations of rustls, made of credentials.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use petrel::security::SecurityError;
use rustls::client::Resumption;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoClientAuth, NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{ClientConfig, Error, RootCertStore, ServerConfig, client, server};

use crate::ALPN;
use crate::files::Material;
use crate::identity::{Certificate, Fingerprint, time_text};
use crate::keys::Suite;
use crate::verify::{Peers, Revoked, SpiffePattern, Trust};

/// Servers whose tickets an opener keeps, up to 8 tickets of 1 to 2 KiB per server.
const SERVERS_KEPT: usize = 256;

/// Tickets that rustls keeps of a server.
const TICKETS_OF_SERVER: usize = 8;

/// Tickets that an acceptor sends: for the next connection, and for another if the next ends early.
const TICKETS_SENT: usize = 2;

/// The settings that outlive a change of the files.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) expected: Option<SpiffePattern>,
    pub(crate) is_permissive: bool,
    pub(crate) suites: Vec<Suite>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { expected: None, is_permissive: false, suites: Suite::ALL.to_vec() }
    }
}

/// Both ends' configurations. New files make new configurations, so no ticket outlives the trust under which the ticket
/// was given.
pub(crate) struct Configs {
    pub(crate) opener: Arc<ClientConfig>,
    pub(crate) acceptor: Arc<ServerConfig>,
    /// For further protocols: without and with certificates of clients. Raw keys are for Petrel alone.
    pub(crate) others: Option<[Arc<ServerConfig>; 2]>,
    pub(crate) own: Own,
    pub(crate) trust: Arc<Trust>,
}

/// This process's own identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Own {
    pub(crate) fingerprint: Fingerprint,
    /// Start and end of the validity in seconds since 1970; a raw key has none.
    validity: Option<(u64, u64)>,
}

impl Own {
    pub(crate) fn expires_at(&self) -> Option<u64> {
        self.validity.map(|(_, end)| end)
    }

    pub(crate) fn is_raw_key(&self) -> bool {
        self.validity.is_none()
    }

    /// Checks that the certificate is valid now.
    ///
    /// # Errors
    /// It is not yet, or not any more.
    pub(crate) fn check(&self, now: SystemTime) -> Result<(), SecurityError> {
        let now = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let text = match self.validity {
            Some((begin, _)) if now < begin => format!(
                "this process's certificate is valid from {} only; check the clock, or issue it anew",
                time_text(begin)
            ),
            Some((_, end)) if now > end => format!(
                "this process's certificate expired on {}; issue a new one (`petrel cert issue`)",
                time_text(end)
            ),
            _ => return Ok(()),
        };
        Err(SecurityError::new(text))
    }
}

impl Configs {
    /// Makes the configurations.
    ///
    /// # Errors
    /// The certificate is not valid now, the key belongs to a different certificate, or a part cannot be read.
    pub(crate) fn new(
        material: &Material,
        revoked: &Arc<Revoked>,
        settings: &Settings,
    ) -> Result<Self, SecurityError> {
        let provider = Arc::new(provider(&settings.suites));
        let algorithms = provider.signature_verification_algorithms;
        let (peers, certified, own) = match material {
            Material::Certificates { chain, key, authorities } => {
                let own = own_certificate(chain)?;
                let certified = certified(chain, key, &provider)?;
                let anchors = Arc::new(anchors(authorities)?);
                let openers = WebPkiClientVerifier::builder_with_provider(
                    Arc::clone(&anchors),
                    Arc::clone(&provider),
                );
                let openers = openers.build().map_err(|error| {
                    SecurityError::new(format!("the authorities are unusable: {error}"))
                })?;
                let expected = settings.expected.clone();
                (Peers::Certificates { anchors, expected, openers }, certified, own)
            }
            Material::RawKey { key, known } => {
                let (certified, fingerprint) = raw_key(key, &provider)?;
                (Peers::RawKeys(known.clone()), certified, Own { fingerprint, validity: None })
            }
        };
        let trust = Arc::new(Trust { peers, revoked: Arc::clone(revoked), algorithms });
        let certified = Arc::new(certified);
        let (of_opener, of_acceptor) = resolvers(certified, own.is_raw_key());
        let mut opener = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| failed(&error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&trust) as Arc<dyn ServerCertVerifier>)
            .with_client_cert_resolver(of_opener);
        opener.alpn_protocols = vec![ALPN.to_vec()];
        opener.resumption = Resumption::in_memory_sessions(SERVERS_KEPT * TICKETS_OF_SERVER);
        let of_anyone: Arc<dyn ClientCertVerifier> = Arc::new(NoClientAuth);
        let acceptor = |clients: &Arc<dyn ClientCertVerifier>| {
            let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
                .with_protocol_versions(&[&TLS13])
                .map_err(|error| failed(&error))?;
            let config = config.with_client_cert_verifier(Arc::clone(clients));
            Ok(config.with_cert_resolver(Arc::clone(&of_acceptor)))
        };
        let of_peers = Arc::clone(&trust) as Arc<dyn ClientCertVerifier>;
        let other = |clients| {
            let mut config: ServerConfig = acceptor(clients)?;
            // No ticket of a port may open a different port.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
            Ok(Arc::new(config))
        };
        let others = match own.is_raw_key() {
            true => None,
            false => Some([other(&of_anyone)?, other(&of_peers)?]),
        };
        let mut acceptor = acceptor(&of_peers)?;
        acceptor.alpn_protocols = vec![ALPN.to_vec()];
        // Tickets keep their state at the opener: an acceptor of many processes has no table to bound.
        acceptor.ticketer = aws_lc_rs::Ticketer::new().map_err(|error| failed(&error))?;
        acceptor.send_tls13_tickets = TICKETS_SENT;
        // 0-RTT data could be replayed.
        acceptor.max_early_data_size = 0;
        Ok(Self { opener: Arc::new(opener), acceptor: Arc::new(acceptor), others, own, trust })
    }
}

type Resolvers = (Arc<dyn client::ResolvesClientCert>, Arc<dyn server::ResolvesServerCert>);

/// Returns the proofs of this process at both ends.
fn resolvers(certified: Arc<CertifiedKey>, is_raw_key: bool) -> Resolvers {
    if is_raw_key {
        let opener = client::AlwaysResolvesClientRawPublicKeys::new(Arc::clone(&certified));
        let acceptor = server::AlwaysResolvesServerRawPublicKeys::new(certified);
        return (Arc::new(opener), Arc::new(acceptor));
    }
    let certified = Arc::new(SingleCertAndKey::from(certified));
    (Arc::clone(&certified) as Arc<_>, certified)
}

fn failed(error: &Error) -> SecurityError {
    SecurityError::new(format!("TLS cannot be set up: {error}"))
}

/// Returns rustls's provider with the suites alone, in their order.
pub(crate) fn provider(suites: &[Suite]) -> CryptoProvider {
    let mut provider = aws_lc_rs::default_provider();
    let all = std::mem::take(&mut provider.cipher_suites);
    let of_number = |suite: &Suite| all.iter().find(|known| known.suite() == suite.number());
    provider.cipher_suites = suites.iter().filter_map(of_number).copied().collect();
    provider
}

pub(crate) fn anchors(
    authorities: &[CertificateDer<'static>],
) -> Result<RootCertStore, SecurityError> {
    let mut anchors = RootCertStore::empty();
    for authority in authorities {
        anchors.add(authority.clone()).map_err(|error| {
            SecurityError::new(format!("an authority's certificate is unusable: {error}"))
        })?;
    }
    Ok(anchors)
}

fn own_certificate(chain: &[CertificateDer<'static>]) -> Result<Own, SecurityError> {
    let first = chain.first();
    let first = first.ok_or_else(|| SecurityError::new("this process has no certificate"))?;
    let Certificate { begins_at, expires_at, .. } = Certificate::parse(first)?;
    let own = Own { fingerprint: Fingerprint::of(first), validity: Some((begins_at, expires_at)) };
    own.check(SystemTime::now())?;
    Ok(own)
}

pub(crate) fn certified(
    chain: &[CertificateDer<'static>],
    key: &PrivateKeyDer<'static>,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, SecurityError> {
    let certified = CertifiedKey::from_der(chain.to_vec(), key.clone_key(), provider);
    certified.map_err(|error| {
        let text = match error {
            Error::InconsistentKeys(_) => {
                "the private key does not belong to the certificate; copy both \
                 files of the same issue, or issue both anew (`petrel cert issue`)"
                    .to_owned()
            }
            error => format!("the private key is unusable: {error}"),
        };
        SecurityError::new(text)
    })
}

/// Returns a key whose certificate is the public key (RFC 7250), and the fingerprint of that.
fn raw_key(
    key: &PrivateKeyDer<'static>,
    provider: &CryptoProvider,
) -> Result<(CertifiedKey, Fingerprint), SecurityError> {
    let key = provider
        .key_provider
        .load_private_key(key.clone_key())
        .map_err(|error| SecurityError::new(format!("the private key is unusable: {error}")))?;
    let public = key.public_key();
    let public = public.ok_or_else(|| SecurityError::new("the private key has no public one"))?;
    let fingerprint = Fingerprint::of(&public);
    let public = CertificateDer::from(public.to_vec());
    Ok((CertifiedKey::new(vec![public], key), fingerprint))
}

/// Returns the fingerprint of the public key of a private key in PEM.
///
/// # Errors
/// The text has no usable key.
pub(crate) fn raw_key_fingerprint(pem: &[u8]) -> Result<Fingerprint, SecurityError> {
    let key = crate::files::private_key(pem)?;
    Ok(raw_key(&key, &aws_lc_rs::default_provider())?.1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn check__of_an_own_certificate_that_ends_under_use() {
        let own = Own { fingerprint: Fingerprint([0; 32]), validity: Some((1_000, 2_000)) };
        let check = |seconds| own.check(UNIX_EPOCH + Duration::from_secs(seconds));
        let text = |seconds| check(seconds).unwrap_err().to_string();
        assert!(text(999).starts_with("this process's certificate is valid from Thu, 01 Jan 1970"));
        assert_eq!((check(1_000), check(2_000)), (Ok(()), Ok(())));
        assert!(text(2_001).starts_with("this process's certificate expired on Thu, 01 Jan 1970"));
        let raw = Own { validity: None, ..own };
        assert_eq!(raw.check(SystemTime::now()), Ok(()));
    }
}
