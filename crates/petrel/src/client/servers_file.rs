//! Servers listed in a file, one per line.
//!
//! Each check reads the whole small file and compares it with the previous text. Unlike with `stat` or inotify, neither
//! the granularity of timestamps nor swapped links (a volume of Kubernetes) matter.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use petrel_proto::Status;

use super::targets::{TargetName, each_once};
use crate::control::EndpointId;
use crate::error::Error;
use crate::events;
use crate::values::client::Target;

/// The time between two checks: soon enough for people, at a cost of some ten microseconds a second.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The longest file: some thirty thousand servers. A wrong path may lead to a larger one.
const FILE_BYTES_MAX: usize = 1 << 20;

/// A file with its state at the last check.
pub(super) struct ServersFile {
    path: PathBuf,
    /// The text from which `targets` was made.
    text: String,
    /// Sorted, because a resolver may shuffle the addresses of a name.
    targets: Vec<Target>,
    /// The reason if the last check failed.
    failure: Option<String>,
}

impl ServersFile {
    /// Reads a file for the first time.
    ///
    /// # Errors
    /// UNAVAILABLE if the file cannot be read or a name has no address. INVALID_ARGUMENT, with the line, if a line is
    /// not a server, and if the file has none.
    pub(super) fn open(path: PathBuf) -> Result<Self, Error> {
        let text = read(&path)?;
        let targets = resolve(&path, &text)?;
        Ok(Self { path, text, targets, failure: None })
    }

    pub(super) fn targets(&self) -> Vec<Target> {
        self.targets.clone()
    }

    /// Checks the file every second, and at once on request, because names may resolve to other servers. Returns when
    /// the client's service ends, and with it the sender of requests.
    pub(super) fn follow(mut self, asked: &Receiver<()>, set: impl Fn(Vec<Target>)) {
        loop {
            let may_have_moved = match asked.recv_timeout(CHECK_INTERVAL) {
                Ok(()) => true,
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if let Some(targets) = self.look(may_have_moved) {
                set(targets);
            }
        }
    }

    /// Returns the servers if they have changed. An unreadable file changes nothing, and is reported by one event.
    fn look(&mut self, may_have_moved: bool) -> Option<Vec<Target>> {
        match self.read_again(may_have_moved) {
            Ok(has_changed) => {
                self.failure = None;
                has_changed.then(|| {
                    events::servers_changed(&self.path, self.targets.len());
                    self.targets()
                })
            }
            Err(error) => {
                if self.failure.as_ref() != Some(&error.message) {
                    events::servers_file_failed(&self.path, &error.message);
                    self.failure = Some(error.message.clone());
                }
                None
            }
        }
    }

    fn read_again(&mut self, may_have_moved: bool) -> Result<bool, Error> {
        let text = read(&self.path)?;
        if text == self.text && !may_have_moved {
            return Ok(false);
        }
        let targets = resolve(&self.path, &text)?;
        let has_changed = targets != self.targets;
        (self.text, self.targets) = (text, targets);
        Ok(has_changed)
    }
}

fn read(path: &Path) -> Result<String, Error> {
    let unreadable = |why: &dyn fmt::Display| {
        let message = format!("{}: cannot be read: {why}", path.display());
        Error::not_sent(Status::Unavailable, message)
    };
    let mut text = String::new();
    let file = File::open(path).map_err(|error| unreadable(&error))?;
    let mut limited = file.take(FILE_BYTES_MAX as u64 + 1);
    limited.read_to_string(&mut text).map_err(|error| unreadable(&error))?;
    if text.len() > FILE_BYTES_MAX {
        return Err(unreadable(&format_args!("it is longer than {FILE_BYTES_MAX} bytes")));
    }
    Ok(text)
}

/// Returns the servers of a text, without duplicates.
fn resolve(path: &Path, text: &str) -> Result<Vec<Target>, Error> {
    let mut targets = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let at = |why: &str| format!("{}:{number}: {why}", path.display());
        let name = parse(line).map_err(|why| Error::not_sent(Status::InvalidArgument, at(&why)))?;
        if let Some(name) = name {
            let found = name.resolve().map_err(|error| {
                let message = at(&error.message);
                error.with_message(message)
            });
            targets.extend(found?);
        }
    }
    if targets.is_empty() {
        let message = format!("{}: a client needs a server's address", path.display());
        return Err(Error::not_sent(Status::InvalidArgument, message));
    }
    let mut targets = each_once(targets);
    targets.sort_unstable_by_key(|target| (target.address, target.endpoint.0));
    Ok(targets)
}

/// Returns the server of a line, if any.
fn parse(line: &str) -> Result<Option<TargetName>, String> {
    let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
    let Some(server) = words.next() else { return Ok(None) };
    let (mut endpoint, mut weight) = (None, None);
    for word in words {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let is_first = match name {
            "weight" => weight.replace(number::<u32>(word, value, 1)?).is_none(),
            "endpoint" => endpoint.replace(number::<u16>(word, value, 0)?).is_none(),
            _ => return Err(format!("{word:?}: weight=N or endpoint=N expected")),
        };
        if !is_first {
            return Err(format!("{name} is given twice"));
        }
    }
    let server = TargetName::from((server, EndpointId(endpoint.unwrap_or(0))));
    Ok(Some(server.weighing(weight.unwrap_or(1))))
}

fn number<N: std::str::FromStr + PartialOrd + fmt::Display>(
    word: &str,
    value: &str,
    least: N,
) -> Result<N, String> {
    let number = value.parse().ok().filter(|number| *number >= least);
    number.ok_or_else(|| format!("{word:?}: a whole number from {least} expected"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;
    use std::{fs, process};

    use super::*;

    /// A file in the temporary directory, until the test ends.
    struct Written(PathBuf);

    impl Written {
        fn new(text: &str) -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("petrel-servers-{}-{number}", process::id());
            let written = Self(std::env::temp_dir().join(name));
            written.write(text);
            written
        }

        fn write(&self, text: &str) {
            fs::write(&self.0, text).unwrap();
        }

        fn open(&self) -> ServersFile {
            ServersFile::open(self.0.clone()).unwrap()
        }
    }

    impl Drop for Written {
        fn drop(&mut self) {
            // A test may have removed it.
            let _ = fs::remove_file(&self.0);
        }
    }

    fn target(address: &str, endpoint: u16, weight: u32) -> Target {
        Target::from((address.parse().unwrap(), EndpointId(endpoint))).weighing(weight)
    }

    #[test]
    fn open__reads_servers_with_weights_endpoints_and_comments() {
        let written = Written::new(
            "# the store\n\n  127.0.0.1:1  \n127.0.0.1:2 weight=3 # twice the memory\r\n\
             [::1]:3\tendpoint=4 weight=1\n127.0.0.1:1 weight=9\n#127.0.0.1:4\nlocalhost:5 weight=2",
        );
        let targets = written.open().targets();
        let literal =
            [target("127.0.0.1:1", 0, 1), target("127.0.0.1:2", 0, 3), target("[::1]:3", 4, 1)];
        for expected in literal {
            assert!(targets.contains(&expected), "{expected:?} in {targets:?}");
        }
        let by_name: Vec<_> = targets.iter().filter(|at| !literal.contains(at)).collect();
        assert!(!by_name.is_empty(), "localhost has an address");
        assert!(by_name.iter().all(|at| at.address.port() == 5 && at.weight == 2), "{by_name:?}");
    }

    #[test]
    fn open__says_which_line_is_wrong() {
        for (text, line, why) in [
            ("127.0.0.1:1\nlocalhost\n", 2, "a host and a port expected"),
            ("#\n\n127.0.0.1:1 weight=0", 3, "\"weight=0\": a whole number from 1 expected"),
            ("127.0.0.1:1 weight=", 1, "a whole number from 1"),
            ("127.0.0.1:1 weight", 1, "a whole number from 1"),
            ("127.0.0.1:1 weight=2 weight=2", 1, "weight is given twice"),
            ("127.0.0.1:1 endpoint=65536", 1, "a whole number from 0"),
            ("127.0.0.1:1 endpoint=1 endpoint=2", 1, "endpoint is given twice"),
            ("127.0.0.1:1, 127.0.0.1:2", 1, "weight=N or endpoint=N expected"),
            ("127.0.0.1:1 127.0.0.1:2", 1, "weight=N or endpoint=N expected"),
        ] {
            let written = Written::new(text);
            let error = ServersFile::open(written.0.clone()).err().unwrap();
            assert_eq!(error.status, Status::InvalidArgument, "{text}: {error}");
            let at = format!("{}:{line}: ", written.0.display());
            assert!(error.message.starts_with(&at), "{text}: {error}");
            assert!(error.message.contains(why), "{text}: {error}");
        }
        let unknown = Written::new("127.0.0.1:1\nno-such-host.invalid:1");
        let error = ServersFile::open(unknown.0.clone()).err().unwrap();
        assert_eq!(error.status, Status::Unavailable);
        assert!(error.message.contains(":2: cannot find the address"), "{error}");
    }

    #[test]
    fn open__needs_a_file_that_can_be_read_and_has_a_server() {
        let none = Written::new("# nothing yet\n");
        let error = ServersFile::open(none.0.clone()).err().unwrap();
        assert_eq!(error.status, Status::InvalidArgument);
        assert!(error.message.contains("needs a server"), "{error}");
        let long = Written::new(&"#".repeat(FILE_BYTES_MAX + 1));
        let error = ServersFile::open(long.0.clone()).err().unwrap();
        assert!(error.message.contains("longer than 1048576 bytes"), "{error}");
        long.write(&("127.0.0.1:1\n#".to_owned() + &"#".repeat(FILE_BYTES_MAX - 13)));
        assert_eq!(long.open().targets(), [target("127.0.0.1:1", 0, 1)]);
        fs::remove_file(&none.0).unwrap();
        let error = ServersFile::open(none.0.clone()).err().unwrap();
        assert_eq!(error.status, Status::Unavailable);
        assert!(error.message.contains("cannot be read: No such file"), "{error}");
    }

    #[test]
    fn look__gives_servers_that_are_others_and_keeps_them_when_there_is_an_error() {
        let written = Written::new("127.0.0.1:1\n");
        let mut file = written.open();
        assert_eq!((file.look(false), file.look(true)), (None, None));
        written.write("127.0.0.1:1\n127.0.0.1:2\n");
        let both = vec![target("127.0.0.1:1", 0, 1), target("127.0.0.1:2", 0, 1)];
        assert_eq!(file.look(false), Some(both.clone()));
        for text in ["127.0.0.1:2\n\n127.0.0.1:1", "127.0.0.1:2 # first\n127.0.0.1:1"] {
            written.write(text);
            assert_eq!(file.look(false), None, "the same servers");
        }
        for wrong in ["", "127.0.0.1:3\n127.0.0.1"] {
            written.write(wrong);
            assert_eq!((file.look(false), file.targets()), (None, both.clone()));
            assert!(file.failure.is_some());
        }
        fs::remove_file(&written.0).unwrap();
        assert_eq!(file.look(false), None);
        assert!(file.failure.as_ref().unwrap().contains("cannot be read"));
        written.write("127.0.0.1:2 weight=2\n");
        assert_eq!(file.look(false), Some(vec![target("127.0.0.1:2", 0, 2)]));
        assert_eq!(file.failure, None);
    }

    #[test]
    fn follow__ends_when_nothing_can_ask() {
        let written = Written::new("127.0.0.1:1\n");
        let file = written.open();
        let (ask, asked) = mpsc::sync_channel(1);
        ask.try_send(()).unwrap();
        drop(ask);
        written.write("127.0.0.1:2\n");
        let (set, was_set) = mpsc::channel();
        file.follow(&asked, move |targets| set.send(targets).unwrap());
        let all: Vec<_> = was_set.into_iter().collect();
        assert_eq!(all, [vec![target("127.0.0.1:2", 0, 1)]]);
    }
}
