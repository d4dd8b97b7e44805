//! TLS 1.3 for Petrel: credentials, secured control connections, and the keys of sealed datagrams.
//!
//! A nexus takes [`Credentials`] as a value. The credentials come from one of three sources:
//!
//! - Certificates of a local authority, or of another that writes files: [`Credentials::from_dir`]. The files may change at any time.
//! - Certificates in memory: [`Credentials::builder`].
//! - Raw public keys (RFC 7250), each pinned in a file: [`Credentials::raw_key`]. Two hosts need no authority.
//!
//! ```
//! use std::time::Duration;
//!
//! use petrel::security::Security;
//! use petrel_tls::{Credentials, issue};
//!
//! # fn main() -> Result<(), petrel::security::SecurityError> {
//! # let folder = std::env::temp_dir().join(format!("petrel-tls-doc-{}", std::process::id()));
//! let day = Duration::from_secs(24 * 60 * 60);
//! let authority = issue::Authority::new("our datacenter", 365 * day)?;
//! authority.issue(&issue::Subject::new(day).name("db1").name("10.0.0.7"))?.write(&folder)?;
//!
//! let credentials = Credentials::from_dir(&folder)?;
//! let mut opener = credentials.connect("10.0.0.7:4000".parse().unwrap(), Some("db1"))?;
//! let mut output = Vec::new();
//! opener.take_output(&mut output);
//! assert_eq!(output[0], 0x16);
//! # std::fs::remove_dir_all(folder).unwrap();
//! # Ok(())
//! # }
//! ```
//!
//! | type | concern |
//! | --- | --- |
//! | [`Credentials`] | `petrel::security::Security`: whom a process is, and whom it trusts |
//! | [`CredentialsStatus`] | the fingerprint in use, its end, and why newer files are not in use |
//! | [`Fingerprint`] | SHA-256 of a certificate or raw key, as `sha256:BASE64` |
//! | [`Suite`], [`keys_from_secret`] | the cipher of a connection, and the keys of its sealed datagrams |
//! | [`issue`] | authorities, certificates, raw keys, pins, and revocation |
//! | [`inspect`] | what is wrong with a folder |
//!
//! The rules are those of `docs/wire-protocol.md` §17: TLS 1.3 alone, both sides authenticated, ALPN `petrel/1`, tickets for
//! resumption, no 0-RTT data. The cryptography is that of AWS-LC by rustls, with the post-quantum key exchange X25519MLKEM768.
//!
//! **Limitations.** No revocation lists of authorities: the file `revoked` has fingerprints; issue certificates for days. No pre-shared keys: rustls has none. The SPIFFE workload API is
//! not spoken; its helpers write files.

#![forbid(unsafe_code)]

mod configs;
mod credentials;
mod files;
mod identity;
pub mod inspect;
pub mod issue;
mod keys;
mod known_peers;
mod stream;
mod text;
mod verify;

pub use credentials::{Credentials, CredentialsBuilder, CredentialsStatus};
pub use identity::Fingerprint;
pub use keys::{Suite, keys_from_secret};

/// The protocol's name in TLS (`docs/wire-protocol.md` §17.1).
const ALPN: &[u8] = b"petrel/1";
