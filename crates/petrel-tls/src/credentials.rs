//! The credentials of a process, from files or from memory.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use petrel::security::{
    FromFiles, PeerIdentity, SecureStream, Security, SecurityError, StreamCipher,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConnection, Connection, ServerConnection};

use crate::configs::{Configs, Settings};
use crate::files::{self, Files, Material};
use crate::identity::Fingerprint;
use crate::keys::Suite;
use crate::stream::Stream;
use crate::verify::{Revoked, SpiffePattern};

/// A process's certificate or raw key, and its trust in others. See the [crate](crate) for the three ways to have them.
pub struct Credentials {
    source: Source,
    settings: Settings,
    current: FromFiles<Loaded>,
    /// The file of revoked peers counts even if the others are broken.
    revocations: FromFiles<()>,
    revoked: Arc<Revoked>,
}

enum Source {
    Files(Files),
    Memory(Material),
}

/// Configurations, and the digest of the contents.
struct Loaded {
    configs: Arc<Configs>,
    digest: [u8; 32],
}

/// The state of credentials, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CredentialsStatus {
    /// Fingerprint of the certificate, or of the raw public key.
    pub fingerprint: Fingerprint,
    /// End of the certificate, in seconds since 1970.
    pub expires_at: Option<u64>,
    /// Contents of the files that were put in use, the first included.
    pub loads: u64,
    /// Why the files as they are now are not in use: the former contents are.
    pub failure: Option<SecurityError>,
}

impl Credentials {
    /// Reads `cert.pem` (the certificate, then intermediate certificates), `key.pem` and `ca.pem` (the trusted authorities) of a
    /// folder. A folder with a file `known_peers` has a [raw key](Self::raw_key) in `key.pem` instead. The file `revoked`, if
    /// present, lists fingerprints of refused certificates, line by line, and `#` begins a comment. Later changes of the files
    /// are read when a connection begins, and once a second while there are connections. Broken files leave the former contents
    /// in use; [`status`](Self::status) has the reason then.
    ///
    /// # Errors
    /// A file cannot be read, further users have access to the key, the certificate is not valid now, or the key belongs to a
    /// different certificate.
    pub fn from_dir(folder: impl AsRef<Path>) -> Result<Self, SecurityError> {
        let files = Files::in_folder(folder.as_ref());
        Self::new(Source::Files(files), Settings::default())
    }

    /// Begins credentials of values in memory.
    pub fn builder() -> CredentialsBuilder {
        CredentialsBuilder::default()
    }

    /// Uses a raw public key (RFC 7250), without certificates: `key` is a file with the private key in PEM. Peers are trusted
    /// whose keys are pinned in the file `known_peers`: a line is a name or address and `sha256:BASE64`, and `#` begins a comment. A key
    /// without its line loses its connections. Changes, and the file `revoked` beside `known_peers`, are read as in [`from_dir`](Self::from_dir).
    ///
    /// # Errors
    /// A file cannot be read, others have access to the key, or a line has another form.
    pub fn raw_key(
        key: impl Into<PathBuf>,
        known_peers: impl Into<PathBuf>,
    ) -> Result<Self, SecurityError> {
        let files = Files::RawKey { key: key.into(), known_peers: known_peers.into() };
        Self::new(Source::Files(files), Settings::default())
    }

    /// Expects a SPIFFE ID of acceptors, instead of the name or address by which they are dialled. `id` is one ID, as
    /// `spiffe://prod/web`, or a trust domain, as `spiffe://prod`, for all IDs in it.
    ///
    /// # Errors
    /// The text is no SPIFFE ID, or the credentials are a raw key.
    pub fn expect_spiffe(self, id: &str) -> Result<Self, SecurityError> {
        if self.current.last().configs.own.is_raw_key() {
            return Err(SecurityError::new(
                "raw keys have no SPIFFE IDs; pin keys of peers instead",
            ));
        }
        let expected = Some(SpiffePattern::parse(id)?);
        let settings = Settings { expected, ..self.settings };
        Self::new(self.source, settings)
    }

    /// Also accepts connections without TLS, for the time of a migration.
    #[must_use]
    pub fn permissive(mut self, is_permissive: bool) -> Self {
        self.settings.is_permissive = is_permissive;
        self
    }

    /// Offers and accepts these cipher suites alone, the preferred first.
    ///
    /// # Errors
    /// The list is empty.
    pub fn suites(self, suites: &[Suite]) -> Result<Self, SecurityError> {
        if suites.is_empty() {
            return Err(SecurityError::new("TLS needs a cipher suite"));
        }
        let settings = Settings { suites: suites.to_vec(), ..self.settings };
        Self::new(self.source, settings)
    }

    /// Reads the files now.
    ///
    /// # Errors
    /// The files are broken; the former contents stay in use.
    pub fn reload(&self) -> Result<(), SecurityError> {
        let revoked = self.revocations.reload(|()| self.read_revoked());
        self.current.reload(|loaded| self.read(loaded)).and(revoked)
    }

    /// Returns the state of the credentials.
    pub fn status(&self) -> CredentialsStatus {
        let own = self.current.last().configs.own;
        let files = self.current.status();
        CredentialsStatus {
            fingerprint: own.fingerprint,
            expires_at: own.expires_at(),
            loads: files.loads,
            failure: files.failure.or(self.revocations.status().failure),
        }
    }

    fn new(source: Source, settings: Settings) -> Result<Self, SecurityError> {
        let (paths, revoked_paths) = match &source {
            Source::Files(files) => (files.paths(), vec![files.revoked_path()]),
            Source::Memory(_) => (Vec::new(), Vec::new()),
        };
        let revoked = Arc::new(Revoked::default());
        let revocations = FromFiles::new(revoked_paths, || match &source {
            Source::Memory(_) => Ok(()),
            Source::Files(files) => {
                revoked.replace(files.read_revoked()?);
                Ok(())
            }
        })?;
        let current = FromFiles::new(paths, || match &source {
            Source::Memory(material) => {
                let configs = Arc::new(Configs::new(material, &revoked, &settings)?);
                Ok(Loaded { configs, digest: [0; 32] })
            }
            Source::Files(files) => {
                let (material, digest) = files.read()?;
                load(files, (&material, digest), &revoked, &settings)
            }
        })?;
        Ok(Self { source, settings, current, revocations, revoked })
    }

    /// Reads the files anew. Contents that are in use already keep their tickets.
    fn read(&self, former: &Loaded) -> Result<Option<Loaded>, SecurityError> {
        let Source::Files(files) = &self.source else { return Ok(None) };
        let (material, digest) = files.read()?;
        let is_new = digest != former.digest;
        let load = || load(files, (&material, digest), &self.revoked, &self.settings);
        is_new.then(load).transpose()
    }

    fn read_revoked(&self) -> Result<Option<()>, SecurityError> {
        let Source::Files(files) = &self.source else { return Ok(None) };
        Ok(self.revoked.replace(files.read_revoked()?).then_some(()))
    }

    /// Returns the configurations for a new connection, after a look at the files.
    fn configs(&self, now: Instant) -> Result<Arc<Configs>, SecurityError> {
        let configs = self.looked(now);
        configs.own.check(SystemTime::now())?;
        Ok(configs)
    }

    /// Returns the configurations after a look at the files, if the last look is a second ago or the certificate has ended.
    fn looked(&self, now: Instant) -> Arc<Configs> {
        self.revocations.get(now, |()| self.read_revoked());
        let read = |former: &Loaded| self.read(former);
        let mut loaded = self.current.get(now, read);
        if loaded.configs.own.check(SystemTime::now()).is_err() {
            loaded = self.current.look(now, read);
        }
        Arc::clone(&loaded.configs)
    }
}

/// Makes the configurations, and names the file of the certificate or key in errors.
fn load(
    files: &Files,
    (material, digest): (&Material, [u8; 32]),
    revoked: &Arc<Revoked>,
    settings: &Settings,
) -> Result<Loaded, SecurityError> {
    let (Files::Certificates { chain: path, .. } | Files::RawKey { key: path, .. }) = files;
    let configs = Configs::new(material, revoked, settings)
        .map_err(|error| SecurityError::new(format!("{}: {error}", path.display())))?;
    Ok(Loaded { configs: Arc::new(configs), digest })
}

impl Security for Credentials {
    fn connect(
        &self,
        to: SocketAddr,
        name: Option<&str>,
    ) -> Result<Box<dyn SecureStream>, SecurityError> {
        let configs = self.configs(Instant::now())?;
        let name = match name {
            Some(name) => ServerName::try_from(name.to_owned()).map_err(|_| {
                SecurityError::new(format!("`{name}` is no name of a host: give it without port"))
            })?,
            None => ServerName::from(to.ip().to_canonical()),
        };
        let tls = ClientConnection::new(Arc::clone(&configs.opener), name)
            .map_err(|error| SecurityError::new(format!("TLS cannot begin: {error}")))?;
        Ok(Box::new(Stream::new(Connection::Client(tls), configs.own)))
    }

    fn accept(&self) -> Result<Box<dyn SecureStream>, SecurityError> {
        let configs = self.configs(Instant::now())?;
        let tls = ServerConnection::new(Arc::clone(&configs.acceptor))
            .map_err(|error| SecurityError::new(format!("TLS cannot begin: {error}")))?;
        Ok(Box::new(Stream::new(Connection::Server(tls), configs.own)))
    }

    fn accept_other(&self, is_mutual: bool) -> Result<Box<dyn StreamCipher>, SecurityError> {
        let configs = self.configs(Instant::now())?;
        let others = configs.others.as_ref().ok_or_else(|| {
            SecurityError::new(
                "other clients than Petrel's know no raw keys: use certificates (`petrel cert issue`)",
            )
        })?;
        let tls = ServerConnection::new(Arc::clone(&others[usize::from(is_mutual)]))
            .map_err(|error| SecurityError::new(format!("TLS cannot begin: {error}")))?;
        Ok(Box::new(Stream::of_other(Connection::Server(tls), configs.own)))
    }

    fn is_permissive(&self) -> bool {
        self.settings.is_permissive
    }

    fn revision(&self) -> u64 {
        self.looked(Instant::now());
        self.current.status().loads + self.revocations.status().loads
    }

    fn distrusts(&self, peer: &PeerIdentity) -> Option<String> {
        let trust = Arc::clone(&self.current.last().configs.trust);
        trust.check_still(Fingerprint(peer.fingerprint?)).err().map(|error| error.to_string())
    }
}

/// Tells the status alone: the rest is secret.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("status", &self.status()).finish_non_exhaustive()
    }
}

/// Makes [`Credentials`] of values in memory: a certificate, its key, and the trusted authorities.
#[derive(Default)]
pub struct CredentialsBuilder {
    chain: Vec<CertificateDer<'static>>,
    key: Option<PrivateKeyDer<'static>>,
    authorities: Vec<CertificateDer<'static>>,
}

impl CredentialsBuilder {
    /// Sets the certificate, followed by the intermediate certificates, in PEM.
    ///
    /// # Errors
    /// The text has no certificate, or a broken one.
    pub fn certificate_pem(mut self, pem: &[u8]) -> Result<Self, SecurityError> {
        self.chain = files::certificates(pem)?;
        Ok(self)
    }

    /// Sets the private key, in PEM.
    ///
    /// # Errors
    /// The text has no key.
    pub fn key_pem(mut self, pem: &[u8]) -> Result<Self, SecurityError> {
        self.key = Some(files::private_key(pem)?);
        Ok(self)
    }

    /// Adds trusted authorities, in PEM.
    ///
    /// # Errors
    /// The text has no certificate, or a broken one.
    pub fn authorities_pem(mut self, pem: &[u8]) -> Result<Self, SecurityError> {
        self.authorities.extend(files::certificates(pem)?);
        Ok(self)
    }

    /// Makes the credentials.
    ///
    /// # Errors
    /// A part is missing, the certificate is not valid now, or the key belongs to a different certificate.
    pub fn build(self) -> Result<Credentials, SecurityError> {
        let key = self.key.ok_or_else(|| SecurityError::new("the private key is missing"))?;
        let material =
            Material::Certificates { chain: self.chain, key, authorities: self.authorities };
        Credentials::new(Source::Memory(material), Settings::default())
    }
}

/// Tells the number of certificates alone: the key is secret.
impl fmt::Debug for CredentialsBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialsBuilder")
            .field("chain", &self.chain.len())
            .field("authorities", &self.authorities.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;
    use crate::issue::{Authority, Subject};

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    const LOOK_EVERY: Duration = Duration::from_secs(1);

    /// A folder that goes with its test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = format!("petrel-tls-unit-{name}-{}", std::process::id());
            Self(std::env::temp_dir().join(folder))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn configs__looks_at_the_files_once_a_second() {
        let folder = Folder::new("look");
        let authority = Authority::new("test", DAY).unwrap();
        let issue = || authority.issue(&Subject::new(DAY).name("a")).unwrap();
        issue().write(&folder.0).unwrap();
        let credentials = Credentials::from_dir(&folder.0).unwrap();
        let first = credentials.status();

        let second = issue();
        second.write(&folder.0).unwrap();
        let began = credentials.current.looked_at();
        credentials.configs(began + LOOK_EVERY / 2).unwrap();
        assert_eq!(credentials.status(), first, "it is too early to look");
        credentials.configs(began + LOOK_EVERY).unwrap();
        let status = credentials.status();
        assert_eq!((status.fingerprint, status.loads), (second.fingerprint().unwrap(), 2));

        let configs = credentials.configs(began + 2 * LOOK_EVERY).unwrap();
        let again = credentials.configs(began + 3 * LOOK_EVERY).unwrap();
        assert!(Arc::ptr_eq(&configs, &again), "the same contents keep their tickets");
        assert_eq!(credentials.status().loads, 2);
    }

    /// Gives the files a time at which no clock of a file system ticks any more.
    fn age(folder: &Folder, age: Duration) {
        for name in ["cert.pem", "key.pem", "ca.pem"] {
            let file = fs::File::options().append(true).open(folder.0.join(name)).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + DAY - age).unwrap();
        }
    }

    #[test]
    fn configs__of_settled_files_are_read_once() {
        let folder = Folder::new("settled");
        let authority = Authority::new("test", DAY).unwrap();
        let issue = || authority.issue(&Subject::new(DAY).name("a")).unwrap();
        issue().write(&folder.0).unwrap();
        age(&folder, DAY / 2);
        let credentials = Credentials::from_dir(&folder.0).unwrap();
        let mut now = credentials.current.looked_at();
        let mut look = || {
            now += LOOK_EVERY;
            credentials.configs(now).unwrap();
            credentials.status()
        };

        // A change that no stamp shows: the length, the inode and the time are those before.
        let key = folder.0.join("key.pem");
        let length = fs::metadata(&key).unwrap().len();
        fs::write(&key, vec![b'a'; length as usize]).unwrap();
        age(&folder, DAY / 2);
        assert_eq!(look().failure, None, "the files are not read");
        assert!(credentials.reload().is_err(), "a reload reads them in any case");
        assert!(look().failure.is_some());

        issue().write(&folder.0).unwrap();
        age(&folder, DAY / 2);
        assert_eq!(look().loads, 2, "the inodes are new");
        fs::write(folder.0.join("ca.pem"), "").unwrap();
        age(&folder, DAY / 2);
        assert!(look().failure.is_some(), "the length is new");
        fs::write(folder.0.join("ca.pem"), authority.certificate()).unwrap();
        assert_eq!(look().failure, None, "the time is new");
    }

    #[test]
    fn configs__of_half_written_files_are_the_former() {
        let folder = Folder::new("half");
        let authority = Authority::new("test", DAY).unwrap();
        let issue = || authority.issue(&Subject::new(DAY).name("a")).unwrap();
        issue().write(&folder.0).unwrap();
        let credentials = Credentials::from_dir(&folder.0).unwrap();
        let first = credentials.status();
        let next = issue();
        let mut now = credentials.current.looked_at();
        let mut look = || {
            now += LOOK_EVERY;
            credentials.configs(now).unwrap();
            credentials.status()
        };

        let chain = folder.0.join("cert.pem");
        let half = &next.certificate[..next.certificate.len() / 2];
        for (contents, why) in [
            (half, "the PEM text is broken"),
            ("", "no certificate is there"),
            (&next.certificate, "the private key does not belong to the certificate"),
        ] {
            fs::write(&chain, contents).unwrap();
            let status = look();
            let failure = status.failure.unwrap().to_string();
            assert!(failure.contains(why) && failure.contains("cert.pem"), "{failure}");
            assert_eq!((status.fingerprint, status.loads), (first.fingerprint, 1));
        }
        fs::remove_file(&chain).unwrap();
        assert!(look().failure.unwrap().to_string().contains("cannot be read"));

        next.write(&folder.0).unwrap();
        let status = look();
        assert_eq!(status.failure, None);
        assert_eq!((status.fingerprint, status.loads), (next.fingerprint().unwrap(), 2));
    }
}
