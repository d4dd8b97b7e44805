//! Credentials of a run: the server issues them, and passes the client's with its address.

use std::sync::Arc;
use std::time::Duration;

use peers_common::Failure;
use petrel_tls::issue::{Authority, Subject};
use petrel_tls::{Credentials, CredentialsBuilder};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Issues credentials for both ends. Returns them, and the words that follow the server's address.
pub(crate) fn issue() -> Result<(Arc<Credentials>, String), Failure> {
    let subject = Subject::new(DAY).name("127.0.0.1").name("localhost");
    let issued = Authority::new("authority of a benchmark", DAY)?.issue(&subject)?;
    let parts = [&issued.certificate, &issued.key, &issued.authority];
    let words: String = parts.iter().map(|pem| format!(",{}", to_hex(pem.as_bytes()))).collect();
    let pem = parts.map(|pem| pem.as_bytes().to_vec());
    Ok((credentials(&pem)?, words))
}

/// Returns the address, and the client's credentials if the address has any.
pub(crate) fn read(address: &str) -> Result<(&str, Option<Arc<Credentials>>), Failure> {
    let mut words = address.split(',');
    let address = words.next().ok_or("no address")?;
    let parts = words.map(from_hex).collect::<Result<Vec<_>, _>>()?;
    match <[Vec<u8>; 3]>::try_from(parts) {
        Ok(parts) => Ok((address, Some(credentials(&parts)?))),
        Err(parts) if parts.is_empty() => Ok((address, None)),
        Err(_) => Err("an address with a part of the credentials".into()),
    }
}

fn credentials([certificate, key, authority]: &[Vec<u8>; 3]) -> Result<Arc<Credentials>, Failure> {
    let builder = Credentials::builder().certificate_pem(certificate)?;
    let built =
        builder.key_pem(key)?.authorities_pem(authority).and_then(CredentialsBuilder::build);
    Ok(Arc::new(built?))
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(hex: &str) -> Result<Vec<u8>, Failure> {
    let digits = hex.as_bytes().chunks(2);
    let byte = |pair: &[u8]| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?);
    digits.map(byte).collect()
}
