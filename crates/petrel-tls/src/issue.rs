//! Makes certificates and raw keys, for the commands `petrel cert` and `petrel key` and for tests.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use petrel::security::SecurityError;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ED25519, SanType,
};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;
use zeroize::Zeroizing;

use crate::configs::raw_key_fingerprint;
use crate::files;
use crate::identity::{Certificate, Fingerprint};
use crate::known_peers::{KnownPeers, normal};

/// Clocks of hosts differ: a new certificate is valid from this long ago.
const BEGINS_BEFORE: Duration = Duration::from_secs(5 * 60);

/// A local authority, which issues certificates to processes with trust in the authority.
#[derive(Debug)]
pub struct Authority {
    certificate: String,
    /// The certificates of the authorities above, up to the root; empty for a root.
    above: Vec<String>,
    issuer: Issuer<'static, KeyPair>,
}

/// The holder of a certificate to be issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// DNS names.
    pub names: Vec<String>,
    /// IP addresses.
    pub addresses: Vec<IpAddr>,
    /// A SPIFFE ID: `spiffe://domain/path`.
    pub spiffe_id: Option<String>,
    /// Start of the validity.
    pub from: SystemTime,
    /// Length of the validity.
    pub lasts: Duration,
    /// The ends of a connection for which the certificate is.
    pub purpose: Purpose,
}

/// The end of a connection at which a certificate may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// Both: a nexus dials and accepts.
    #[default]
    Both,
    /// The opener alone.
    Opener,
    /// The acceptor alone.
    Acceptor,
}

impl Subject {
    /// Returns a subject without names, valid from five minutes ago until `lasts` from now, for both ends.
    pub fn new(lasts: Duration) -> Self {
        Self {
            names: Vec::new(),
            addresses: Vec::new(),
            spiffe_id: None,
            from: SystemTime::now() - BEGINS_BEFORE,
            lasts: lasts + BEGINS_BEFORE,
            purpose: Purpose::Both,
        }
    }

    /// Adds a DNS name, or an address.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        let name = name.into();
        match name.parse() {
            Ok(address) => self.addresses.push(address),
            Err(_) => self.names.push(name),
        }
        self
    }

    /// Sets the SPIFFE ID.
    #[must_use]
    pub fn spiffe(mut self, id: impl Into<String>) -> Self {
        self.spiffe_id = Some(id.into());
        self
    }

    fn params(&self) -> Result<CertificateParams, SecurityError> {
        let mut params = CertificateParams::default();
        let names = self.names.iter().map(|name| Ok(SanType::DnsName(name.as_str().try_into()?)));
        let addresses = self.addresses.iter().map(|address| Ok(SanType::IpAddress(*address)));
        let ids = self.spiffe_id.iter().map(|id| Ok(SanType::URI(id.as_str().try_into()?)));
        let names: Result<_, rcgen::Error> = names.chain(addresses).chain(ids).collect();
        params.subject_alt_names = names.map_err(failed)?;
        if params.subject_alt_names.is_empty() {
            let text = "a certificate needs a name, an address or a SPIFFE ID";
            return Err(SecurityError::new(text));
        }
        params.distinguished_name = common_name("Petrel");
        set_validity(&mut params, self.from, self.lasts);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match self.purpose {
            Purpose::Both => {
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]
            }
            Purpose::Opener => vec![ExtendedKeyUsagePurpose::ClientAuth],
            Purpose::Acceptor => vec![ExtendedKeyUsagePurpose::ServerAuth],
        };
        params.use_authority_key_identifier_extension = true;
        Ok(params)
    }
}

/// A certificate and its private key, with the certificate of their authority. All are PEM.
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// The private key: secret.
    pub key: Zeroizing<String>,
    /// The certificate of the authority.
    pub authority: String,
}

impl Issued {
    /// Writes `ca.pem`, `key.pem` and `cert.pem`, for [`Credentials::from_dir`](crate::Credentials::from_dir). Each takes
    /// the place of an older file at once, the certificate last. A process that reads in between finds a key of another
    /// certificate, and keeps its former files.
    ///
    /// # Errors
    /// The folder cannot be made or written.
    pub fn write(&self, folder: impl AsRef<Path>) -> Result<(), SecurityError> {
        let folder = folder.as_ref();
        fs::create_dir_all(folder).map_err(|error| unwritten(folder, &error))?;
        replace(&folder.join("ca.pem"), self.authority.as_bytes(), 0o644)?;
        replace(&folder.join("key.pem"), self.key.as_bytes(), 0o600)?;
        replace(&folder.join("cert.pem"), self.certificate.as_bytes(), 0o644)
    }

    /// Returns the fingerprint of the certificate.
    ///
    /// # Errors
    /// The text is no certificate.
    pub fn fingerprint(&self) -> Result<Fingerprint, SecurityError> {
        fingerprint_of_certificate(self.certificate.as_bytes())
    }
}

impl std::fmt::Debug for Issued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Issued").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

impl Authority {
    /// Makes an authority with a new key.
    ///
    /// # Errors
    /// The system has no random numbers, or the name cannot be written.
    pub fn new(name: &str, lasts: Duration) -> Result<Self, SecurityError> {
        let params = authority_params(name, lasts, 1);
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.self_signed(&key).map_err(failed)?.pem();
        Ok(Self { certificate, above: Vec::new(), issuer: Issuer::new(params, key) })
    }

    /// Makes an intermediate authority with a new key. Peers trust the issued certificates by the root's; the root's key can stay off line.
    ///
    /// # Errors
    /// An authority under this one is not allowed, or the name cannot be written.
    pub fn under(&self, name: &str, lasts: Duration) -> Result<Self, SecurityError> {
        let may_issue = |(_, own): (_, X509Certificate<'_>)| {
            let limits = own.basic_constraints().ok().flatten().map(|limits| limits.value.clone());
            limits.is_some_and(|limits| limits.path_len_constraint != Some(0))
        };
        let own = files::certificates(self.certificate.as_bytes())?;
        if !own.first().is_some_and(|own| X509Certificate::from_der(own).is_ok_and(may_issue)) {
            let text =
                "this authority may have no other under it: make one under its root, or a new root";
            return Err(SecurityError::new(text));
        }
        let mut params = authority_params(name, lasts, 0);
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?.pem();
        let above = [&[self.certificate.clone()][..], &self.above].concat();
        Ok(Self { certificate, above, issuer: Issuer::new(params, key) })
    }

    /// Reads an authority of two files in PEM: the certificate, followed by the certificates up to the root, and the private key.
    ///
    /// # Errors
    /// A file cannot be read, or others have access to the key.
    pub fn read(
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Self, SecurityError> {
        let path = certificate.as_ref();
        let text = files::read_text(path, false)?;
        let all = text
            .split_inclusive("-----END CERTIFICATE-----")
            .map(|pem| format!("{}\n", pem.trim()));
        let mut all = all.filter(|pem| pem.contains("-----BEGIN"));
        let none = || SecurityError::new(format!("{} has no certificate", path.display()));
        let certificate = all.next().ok_or_else(none)?;
        let key = files::read_text(key.as_ref(), true)?;
        let key = KeyPair::from_pem(&key).map_err(failed)?;
        let issuer = Issuer::from_ca_cert_pem(&certificate, key).map_err(failed)?;
        Ok(Self { certificate, above: all.collect(), issuer })
    }

    /// Writes the certificate, for all to read, and the private key.
    ///
    /// # Errors
    /// A file cannot be written, or one is there: an authority is not replaced by accident.
    pub fn write(
        &self,
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<(), SecurityError> {
        let pem = Zeroizing::new(self.issuer.key().serialize_pem());
        create(key.as_ref(), pem.as_bytes(), 0o600)?;
        let chain = [&[self.certificate.clone()][..], &self.above].concat().concat();
        create(certificate.as_ref(), chain.as_bytes(), 0o644)
    }

    /// Returns the certificate in PEM, which others add to their `ca.pem`.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Returns the certificates between an issued certificate and the root, in PEM.
    fn intermediates(&self) -> String {
        let chain = [&[self.certificate.clone()][..], &self.above].concat();
        chain[..chain.len() - 1].concat()
    }

    /// Issues a certificate with a new key.
    ///
    /// # Errors
    /// A name cannot be written, or there is none.
    pub fn issue(&self, subject: &Subject) -> Result<Issued, SecurityError> {
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = subject.params()?.signed_by(&key, &self.issuer).map_err(failed)?;
        // The rules of identities hold for every certificate that Petrel makes.
        Certificate::parse(certificate.der())?;
        Ok(Issued {
            certificate: certificate.pem() + &self.intermediates(),
            key: Zeroizing::new(key.serialize_pem()),
            authority: self.above.last().unwrap_or(&self.certificate).clone(),
        })
    }
}

/// Makes a raw key and writes it to a new file. Returns the fingerprint by which peers pin the certificate.
///
/// # Errors
/// The file cannot be written, or is there.
pub fn new_raw_key(path: impl AsRef<Path>) -> Result<Fingerprint, SecurityError> {
    let key = KeyPair::generate_for(&PKCS_ED25519).map_err(failed)?;
    let pem = Zeroizing::new(key.serialize_pem());
    create(path.as_ref(), pem.as_bytes(), 0o600)?;
    raw_key_fingerprint(pem.as_bytes())
}

/// Returns the fingerprint of the raw key in a file.
///
/// # Errors
/// The file cannot be read, has no key, or others have access to it.
pub fn fingerprint_of_raw_key(path: impl AsRef<Path>) -> Result<Fingerprint, SecurityError> {
    raw_key_fingerprint(files::read_text(path.as_ref(), true)?.as_bytes())
}

/// Returns the fingerprint of the first certificate of a PEM text.
///
/// # Errors
/// The text has no certificate.
pub fn fingerprint_of_certificate(pem: &[u8]) -> Result<Fingerprint, SecurityError> {
    let all = files::certificates(pem)?;
    let first = all.first().ok_or_else(|| SecurityError::new("no certificate is there"))?;
    Ok(Fingerprint::of(first))
}

/// Pins a peer's key in a file `known_peers`, in the place of the keys that the name has there. Returns those.
///
/// # Errors
/// The file cannot be read or written, or the name has white space or `#`.
pub fn pin(
    known_peers: impl AsRef<Path>,
    name: &str,
    key: Fingerprint,
) -> Result<Vec<Fingerprint>, SecurityError> {
    let path = known_peers.as_ref();
    if name.is_empty() || name.contains(|sign: char| sign.is_whitespace() || sign == '#') {
        return Err(SecurityError::new(format!("`{name}` cannot be the name of a peer")));
    }
    let _lock = lock_folder_of(path)?;
    let before = if path.exists() { files::read_text(path, false)? } else { Zeroizing::default() };
    KnownPeers::parse(path.to_owned(), &before)?;
    let mut former = Vec::new();
    let mut after = String::new();
    for line in before.lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        match (words.next(), words.next().map(str::parse)) {
            (Some(other), Some(Ok(key))) if normal(other) == normal(name) => former.push(key),
            _ => after.extend([line, "\n"]),
        }
    }
    after.push_str(&format!("{name} {key}\n"));
    replace(path, after.as_bytes(), 0o644)?;
    Ok(former)
}

/// Adds a fingerprint to the file `revoked` of a folder. Processes with the folder end the peer's connections within two seconds.
///
/// # Errors
/// The file cannot be read or written, or has a broken line.
pub fn revoke(folder: impl AsRef<Path>, fingerprint: Fingerprint) -> Result<(), SecurityError> {
    let path = folder.as_ref().join(files::REVOKED);
    let _lock = lock_folder_of(&path)?;
    let before = if path.exists() { files::read_text(&path, false)? } else { Zeroizing::default() };
    if files::parse_revoked(&path, &before)?.contains(&fingerprint) {
        return Ok(());
    }
    replace(&path, format!("{}\n{fingerprint}\n", before.trim_end()).trim_start().as_bytes(), 0o644)
}

fn authority_params(name: &str, lasts: Duration, others_under_it: u8) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(name);
    set_validity(&mut params, SystemTime::now() - BEGINS_BEFORE, lasts + BEGINS_BEFORE);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(others_under_it));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn common_name(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

fn set_validity(params: &mut CertificateParams, from: SystemTime, lasts: Duration) {
    params.not_before = from.into();
    params.not_after = (from + lasts).into();
}

fn failed(error: rcgen::Error) -> SecurityError {
    SecurityError::new(format!("the certificate cannot be made: {error}"))
}

fn unwritten(path: &Path, error: &std::io::Error) -> SecurityError {
    SecurityError::new(format!("{} cannot be written: {error}", path.display()))
}

/// Waits until no other process or thread changes a file of the same folder. The lock is on the folder: the file itself is replaced, and
/// with the file a lock on it. The lock ends with the returned value.
fn lock_folder_of(path: &Path) -> Result<File, SecurityError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = File::open(folder.unwrap_or(Path::new(".")));
    let locked = folder.and_then(|folder| folder.lock().map(|()| folder));
    locked.map_err(|error| unwritten(path, &error))
}

/// Writes a file that is not there yet.
fn create(path: &Path, bytes: &[u8], mode: u32) -> Result<(), SecurityError> {
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    write(file, bytes).map_err(|error| unwritten(path, &error))
}

/// Writes a new file and renames the file over the old: readers see the old contents or the new.
fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<(), SecurityError> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.new", std::process::id()));
    let beside = Path::new(&beside);
    // A file left by a killed process may have a different mode.
    let _ = fs::remove_file(beside);
    create(beside, bytes, mode)?;
    fs::rename(beside, path).map_err(|error| unwritten(path, &error))
}

fn write(file: std::io::Result<File>, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = file?;
    file.write_all(bytes)?;
    file.sync_all()
}
