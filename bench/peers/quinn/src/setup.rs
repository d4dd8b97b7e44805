//! Endpoints: certificates, windows, and the client's trust in the server.

use std::net::SocketAddr;
use std::sync::Arc;

use peers_common::Failure;
use quinn::{ClientConfig, Connection, Endpoint, ServerConfig, TransportConfig, VarInt};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

const NAME: &str = "localhost";

/// Flow control windows: the defaults are smaller than a bulk request.
const WINDOW_BYTES: u32 = 64 << 20;

fn transport() -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(VarInt::from_u32(WINDOW_BYTES));
    transport.receive_window(VarInt::from_u32(WINDOW_BYTES));
    transport.send_window(u64::from(WINDOW_BYTES));
    Arc::new(transport)
}

/// Returns a server's endpoint, and the certificate that its clients must trust.
pub(crate) fn server() -> Result<(Endpoint, CertificateDer<'static>), Failure> {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed([NAME.to_owned()])?;
    let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der());
    let mut config = ServerConfig::with_single_cert(vec![cert.der().clone()], key.into())?;
    config.transport_config(transport());
    Ok((Endpoint::server(config, "127.0.0.1:0".parse()?)?, cert.der().clone()))
}

/// Returns the data that a client needs: the socket's address, and the certificate in hexadecimal.
pub(crate) fn address(endpoint: &Endpoint, certificate: &[u8]) -> Result<String, Failure> {
    let hex: String = certificate.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{},{hex}", endpoint.local_addr()?))
}

pub(crate) async fn connect(address: &str) -> Result<Connection, Failure> {
    let (address, certificate) = address.split_once(',').ok_or("the address has no certificate")?;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(from_hex(certificate)?))?;
    let mut config = ClientConfig::with_root_certificates(Arc::new(roots))?;
    config.transport_config(transport());
    let mut endpoint = Endpoint::client("127.0.0.1:0".parse()?)?;
    endpoint.set_default_client_config(config);
    let address: SocketAddr = address.parse()?;
    Ok(endpoint.connect(address, NAME)?.await?)
}

fn from_hex(text: &str) -> Result<Vec<u8>, Failure> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| digit.to_digit(16).map(|value| value as u8)).collect();
    let digits = digits.ok_or("the certificate is not hexadecimal")?;
    Ok(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}
