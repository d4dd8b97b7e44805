//! The files of credentials: read with a limit and with a look at their modes, and stamped to see changes.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest::{Context, SHA256};
use petrel::security::SecurityError;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::{Zeroize, Zeroizing};

use crate::identity::Fingerprint;
use crate::known_peers::KnownPeers;

/// Longest file: 16 Ki lines of `known_peers`, and more certificates than a handshake carries.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// A file that changed this recently may change again within the same tick of the file system's clock.
const SETTLES_AFTER: Duration = Duration::from_secs(2);

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

/// The state of files at one time: equal stamps mean the same contents, once they are settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stamps {
    files: Vec<Option<Stamp>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
    /// Device and inode: a rotation renames new files over old ones, or turns a symbolic link.
    file: (u64, u64),
}

impl Stamps {
    /// Returns false if a file changed so recently that a further change may leave the stamp as it is.
    pub(crate) fn is_settled(&self, now: SystemTime) -> bool {
        let is_old =
            |time: SystemTime| now.duration_since(time).is_ok_and(|age| age >= SETTLES_AFTER);
        self.files.iter().flatten().filter_map(|stamp| stamp.modified).all(is_old)
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

    fn paths(&self) -> Vec<PathBuf> {
        let own = match self {
            Self::Certificates { chain, key, authorities } => vec![chain, key, authorities],
            Self::RawKey { key, known_peers } => vec![key, known_peers],
        };
        own.into_iter().cloned().chain([self.revoked_path()]).collect()
    }

    /// Returns the file of revoked peers: `revoked`, beside the file of trust.
    fn revoked_path(&self) -> PathBuf {
        let (Self::Certificates { authorities: trust, .. }
        | Self::RawKey { known_peers: trust, .. }) = self;
        trust.with_file_name(REVOKED)
    }

    /// Reads the fingerprints of revoked peers. A missing file is an empty one.
    ///
    /// # Errors
    /// The file cannot be read, has wrong modes, or has a line without a fingerprint.
    pub(crate) fn read_revoked(&self) -> Result<HashSet<Fingerprint>, SecurityError> {
        let path = self.revoked_path();
        match path.exists() {
            true => parse_revoked(&path, &read_text(&path, false)?),
            false => Ok(HashSet::new()),
        }
    }

    pub(crate) fn stamps(&self) -> Stamps {
        let stamp = |path: PathBuf| {
            let metadata = fs::metadata(path).ok()?;
            let file = (metadata.dev(), metadata.ino());
            Some(Stamp { modified: metadata.modified().ok(), length: metadata.len(), file })
        };
        Stamps { files: self.paths().into_iter().map(stamp).collect() }
    }

    /// Reads the files, and a digest of their contents.
    ///
    /// # Errors
    /// A file cannot be read, may be read or written by the wrong users, or has other contents.
    pub(crate) fn read(&self) -> Result<(Material, [u8; 32]), SecurityError> {
        let mut context = Context::new(&SHA256);
        let mut read = |path: &Path, forbidden| {
            let bytes = read(path, forbidden)?;
            context.update(&(bytes.len() as u64).to_le_bytes());
            context.update(&bytes);
            Ok(bytes)
        };
        let material = match self {
            Self::Certificates { chain, key, authorities } => Material::Certificates {
                chain: at(chain, certificates(&read(chain, TRUST_MODES)?))?,
                key: at(key, private_key(&read(key, KEY_MODES)?))?,
                authorities: at(authorities, certificates(&read(authorities, TRUST_MODES)?))?,
            },
            Self::RawKey { key, known_peers } => {
                let key = at(key, private_key(&read(key, KEY_MODES)?))?;
                // Without the file no peer is known yet, and a refusal tells how to pin the first.
                let is_there = known_peers.exists();
                let bytes =
                    if is_there { read(known_peers, TRUST_MODES)? } else { Zeroizing::default() };
                let text = String::from_utf8_lossy(&bytes);
                Material::RawKey { key, known: KnownPeers::parse(known_peers.clone(), &text)? }
            }
        };
        let mut digest = [0; 32];
        digest.copy_from_slice(context.finish().as_ref());
        Ok((material, digest))
    }
}

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

/// Name of the file of revoked peers.
pub(crate) const REVOKED: &str = "revoked";

/// Modes that a private key must not have: group and others neither read nor write it.
pub(crate) const KEY_MODES: (u32, &str) = (0o066, "600");

/// Modes that a file of trust must not have: others do not write it.
const TRUST_MODES: (u32, &str) = (0o002, "644");

fn at<T>(path: &Path, result: Result<T, SecurityError>) -> Result<T, SecurityError> {
    result.map_err(|error| SecurityError::new(format!("{}: {error}", path.display())))
}

fn read(path: &Path, forbidden: (u32, &str)) -> Result<Zeroizing<Vec<u8>>, SecurityError> {
    let shown = path.display();
    let failed = |error| SecurityError::new(format!("{shown} cannot be read: {error}"));
    let file = File::open(path).map_err(failed)?;
    // The modes are those of the open file, not of a file that is there afterwards.
    let metadata = file.metadata().map_err(failed)?;
    let (modes, right) = forbidden;
    if metadata.mode() & modes != 0 {
        let mode = metadata.mode() & 0o777;
        let text =
            format!("other users have access to {shown} (mode {mode:o}): chmod {right} {shown}");
        return Err(SecurityError::new(text));
    }
    if metadata.len() > FILE_BYTES_MAX {
        return Err(SecurityError::new(format!("{shown} is longer than {FILE_BYTES_MAX} bytes")));
    }
    // Room for all of it: a vector that grows leaves copies of a key behind.
    let mut bytes =
        Zeroizing::new(Vec::with_capacity(FILE_BYTES_MAX.min(metadata.len() + 1) as usize));
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
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
    let bytes = read(path, if is_key { KEY_MODES } else { TRUST_MODES })?;
    let text = std::str::from_utf8(&bytes);
    let text = text.map_err(|_| SecurityError::new(format!("{} is no text", path.display())))?;
    Ok(Zeroizing::new(text.to_owned()))
}
