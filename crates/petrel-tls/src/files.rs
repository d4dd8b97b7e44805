//! The files of credentials.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{Context, SHA256};
use petrel::security::{FileAccess, SecurityError, read_file};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::{Zeroize, Zeroizing};

use crate::identity::Fingerprint;
use crate::known_peers::KnownPeers;

/// Where credentials are read from.
#[derive(Clone, Debug)]
pub(crate) enum Files {
    Certificates { chain: PathBuf, key: PathBuf, authorities: PathBuf },
    RawKey { key: PathBuf, known_peers: PathBuf },
}

/// Everything a process proves itself and others with.
pub(crate) enum Material {
    Certificates {
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        authorities: Vec<CertificateDer<'static>>,
    },
    RawKey {
        key: PrivateKeyDer<'static>,
        known: KnownPeers,
    },
}

impl Drop for Material {
    fn drop(&mut self) {
        let (Self::Certificates { key, .. } | Self::RawKey { key, .. }) = self;
        key.zeroize();
    }
}

impl Files {
    /// The files of a folder: a raw key's beside `known_peers`, else a certificate's.
    pub(crate) fn in_folder(folder: &Path) -> Self {
        let file = |name| folder.join(name);
        let (key, known_peers) = (file("key.pem"), file("known_peers"));
        match known_peers.exists() {
            true => Self::RawKey { key, known_peers },
            false => {
                Self::Certificates { chain: file("cert.pem"), key, authorities: file("ca.pem") }
            }
        }
    }

    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        match self {
            Self::Certificates { chain, key, authorities } => {
                vec![chain.clone(), key.clone(), authorities.clone()]
            }
            Self::RawKey { key, known_peers } => vec![key.clone(), known_peers.clone()],
        }
    }

    /// Returns the file of revoked peers: `revoked`, beside the file of trust.
    pub(crate) fn revoked_path(&self) -> PathBuf {
        let (Self::Certificates { authorities: trust, .. }
        | Self::RawKey { known_peers: trust, .. }) = self;
        trust.with_file_name(REVOKED)
    }

    /// Reads the fingerprints of revoked peers. A missing file counts as empty.
    ///
    /// # Errors
    /// The file cannot be read, has wrong modes, or has a line without a fingerprint.
    pub(crate) fn read_revoked(&self) -> Result<HashSet<Fingerprint>, SecurityError> {
        let path = self.revoked_path();
        let folder =
            path.parent().is_none_or(|folder| folder.as_os_str().is_empty() || folder.is_dir());
        match path.try_exists() {
            Ok(true) => parse_revoked(&path, &read_text(&path, false)?),
            Ok(false) if folder => Ok(HashSet::new()),
            // A folder that is gone or closed says nothing about its file.
            _ => Err(SecurityError::new(format!("{} cannot be looked for", path.display()))),
        }
    }

    /// Reads the files, and a digest of their contents.
    ///
    /// # Errors
    /// A file cannot be read, may be read or written by the wrong users, or has other contents.
    pub(crate) fn read(&self) -> Result<(Material, [u8; 32]), SecurityError> {
        let mut context = Context::new(&SHA256);
        let mut read = |path: &Path, access| {
            let bytes = Zeroizing::new(read_file(path, access)?);
            context.update(&(bytes.len() as u64).to_le_bytes());
            context.update(&bytes);
            Ok(bytes)
        };
        let material = match self {
            Self::Certificates { chain, key, authorities } => Material::Certificates {
                chain: at(chain, certificates(&read(chain, FileAccess::Trusted)?))?,
                key: at(key, private_key(&read(key, FileAccess::Secret)?))?,
                authorities: at(
                    authorities,
                    certificates(&read(authorities, FileAccess::Trusted)?),
                )?,
            },
            Self::RawKey { key, known_peers } => {
                let key = at(key, private_key(&read(key, FileAccess::Secret)?))?;
                // Without the file no peer is known yet, and a refusal tells how to pin the first.
                let is_there = known_peers.exists();
                let bytes = if is_there {
                    read(known_peers, FileAccess::Trusted)?
                } else {
                    Zeroizing::default()
                };
                let text = String::from_utf8_lossy(&bytes);
                Material::RawKey { key, known: KnownPeers::parse(known_peers.clone(), &text)? }
            }
        };
        let mut digest = [0; 32];
        digest.copy_from_slice(context.finish().as_ref());
        Ok((material, digest))
    }
}

/// Name of the file of revoked peers.
pub(crate) const REVOKED: &str = "revoked";

/// Reads a fingerprint a line; `#` begins a comment.
///
/// # Errors
/// A line is no fingerprint.
pub(crate) fn parse_revoked(
    path: &Path,
    text: &str,
) -> Result<HashSet<Fingerprint>, SecurityError> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    at(path, lines.filter(|line| !line.is_empty()).map(str::parse).collect())
}

fn at<T>(path: &Path, result: Result<T, SecurityError>) -> Result<T, SecurityError> {
    result.map_err(|error| SecurityError::new(format!("{}: {error}", path.display())))
}

/// Reads the certificates of a PEM text.
///
/// # Errors
/// The text has a broken part, or no certificate.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, SecurityError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(SecurityError::new("no certificate is there: `-----BEGIN CERTIFICATE-----`")),
        Err(error) => Err(SecurityError::new(format!("the PEM text is broken: {error}"))),
    }
}

/// Reads the private key of a PEM text.
///
/// # Errors
/// The text is broken, or has no key.
pub(crate) fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, SecurityError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| {
        let text = "no private key is there: `-----BEGIN PRIVATE KEY-----`, without a password";
        SecurityError::new(text)
    })
}

/// Reads a text file of `issue`.
///
/// # Errors
/// The file cannot be read, or the wrong users have access to it.
pub(crate) fn read_text(path: &Path, is_key: bool) -> Result<Zeroizing<String>, SecurityError> {
    let access = if is_key { FileAccess::Secret } else { FileAccess::Trusted };
    let bytes = Zeroizing::new(read_file(path, access)?);
    let text = std::str::from_utf8(&bytes);
    let text = text.map_err(|_| SecurityError::new(format!("{} is no text", path.display())))?;
    Ok(Zeroizing::new(text.to_owned()))
}
