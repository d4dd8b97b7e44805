//! The file `known_peers`: names of peers and the fingerprints of their raw public keys (RFC 7250), one pair a line.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::path::PathBuf;

use petrel::security::SecurityError;

use crate::identity::Fingerprint;

/// Most pairs of a file, so that a wrong file takes no memory without bound.
const PEERS_MAX: usize = 1 << 16;

/// The peers whose raw public keys are trusted.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownPeers {
    /// Named in the texts of refusals.
    path: PathBuf,
    /// A name has two keys while it changes from one to the other.
    by_name: HashMap<String, Vec<Fingerprint>>,
    all: HashSet<Fingerprint>,
}

impl KnownPeers {
    /// Reads the lines of a file: a name or address, white space, a fingerprint. `#` begins a comment.
    ///
    /// # Errors
    /// A line has another form, or the file has too many.
    pub(crate) fn parse(path: PathBuf, text: &str) -> Result<Self, SecurityError> {
        let mut known = Self { path, ..Self::default() };
        for (index, line) in text.lines().enumerate() {
            let words = line.split('#').next().unwrap_or_default();
            let mut words = words.split_whitespace();
            let Some(name) = words.next() else { continue };
            let place = format!("{}, line {}", known.path.display(), index + 1);
            let (Some(fingerprint), None) = (words.next(), words.next()) else {
                let text = format!("{place}: a line is a name and `sha256:BASE64`");
                return Err(SecurityError::new(text));
            };
            let fingerprint: Fingerprint = fingerprint
                .parse()
                .map_err(|error| SecurityError::new(format!("{place}: {error}")))?;
            known.by_name.entry(normal(name)).or_default().push(fingerprint);
            known.all.insert(fingerprint);
            if index >= PEERS_MAX {
                return Err(SecurityError::new(format!("{place}: more lines than {PEERS_MAX}")));
            }
        }
        Ok(known)
    }

    /// Checks the key of a server that the program knows by `name`.
    ///
    /// # Errors
    /// The name has no key, or another one.
    pub(crate) fn check_server(&self, name: &str, key: Fingerprint) -> Result<(), SecurityError> {
        let command = self.command(name, key);
        let text = match self.by_name.get(&normal(name)) {
            Some(known) if known.contains(&key) => return Ok(()),
            Some(known) => {
                let known: Vec<String> = known.iter().map(Fingerprint::to_string).collect();
                format!(
                    "the key of {name} has changed: it is {key}, and {} has {}. If that is intended, replace the \
                     line: `{command}`. If not, another host answers for {name}",
                    self.path.display(),
                    known.join(" and ")
                )
            }
            None => format!(
                "the key of {name} is unknown: {key}. Compare it with `petrel key show` there, then pin it: `{command}`"
            ),
        };
        Err(SecurityError::new(text))
    }

    /// Checks the key of a client. A client has no name, so the key may stand under any.
    ///
    /// # Errors
    /// No line has the key.
    pub(crate) fn check_client(&self, key: Fingerprint) -> Result<(), SecurityError> {
        if self.all.contains(&key) {
            return Ok(());
        }
        let command = self.command("NAME", key);
        let text =
            format!("the client's key is unknown: {key}. If you trust it, pin it: `{command}`");
        Err(SecurityError::new(text))
    }

    fn command(&self, name: &str, key: Fingerprint) -> String {
        format!("petrel key pin --known-peers {} {name} {key}", self.path.display())
    }
}

/// Returns the one spelling of a name or address.
pub(crate) fn normal(name: &str) -> String {
    match name.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().to_string(),
        Err(_) => name.trim_end_matches('.').to_ascii_lowercase(),
    }
}
