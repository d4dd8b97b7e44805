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
    /// A name has two keys during a change of keys.
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

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Checks the key of a server that the program knows by `name`.
    ///
    /// # Errors
    /// The name has no key, or a different key.
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
        match (self.path.file_name(), self.path.parent()) {
            (Some(file), Some(folder)) if file == "known_peers" => {
                format!("petrel key pin {} {name} {key}", folder.display())
            }
            // The command knows no other file.
            _ => format!("echo {name} {key} >> {}", self.path.display()),
        }
    }
}

/// Returns the one spelling of a name or address.
pub(crate) fn normal(name: &str) -> String {
    match name.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().to_string(),
        Err(_) => name.trim_end_matches('.').to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> Fingerprint {
        Fingerprint([byte; 32])
    }

    fn parse(text: &str) -> Result<KnownPeers, SecurityError> {
        KnownPeers::parse(PathBuf::from("known"), text)
    }

    #[test]
    fn parse__of_names_addresses_and_comments() {
        let text = format!(
            "# ours\n\ndb1 {}\n  DB2.example.\t{}= # the new one\nfd00:0::1 {}\ndb1 {}\n",
            key(1),
            key(2),
            key(3),
            key(4)
        );
        let known = parse(&text).unwrap();
        for (name, pinned) in [("db1", 1), ("db1", 4), ("db2.example", 2), ("fd00::1", 3)] {
            assert_eq!(known.check_server(name, key(pinned)), Ok(()), "{name}");
            assert_eq!(known.check_client(key(pinned)), Ok(()));
        }
        assert!(known.check_server("db2", key(2)).is_err());
        assert!(known.check_server("db2.example", key(1)).is_err());
        assert!(known.check_client(key(5)).is_err());
    }

    #[test]
    fn parse__of_broken_lines() {
        let error = |text: &str| parse(text).unwrap_err().to_string();
        assert_eq!(error("\ndb1\n"), "known, line 2: a line is a name and `sha256:BASE64`");
        assert!(error("db1 a b").starts_with("known, line 1: a line is"));
        for fingerprint in ["sha1:AAAA", "sha256:AAAA", "sha256:!", "AAAA"] {
            let error = error(&format!("db1 {fingerprint}"));
            assert!(error.starts_with("known, line 1: `"), "{error}");
        }
    }
}
