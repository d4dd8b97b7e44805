//! memcached's ASCII authentication (`-Y`): the first command of a connection is a `set` with user and password as the value.

use std::fmt;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use petrel::security::{FileAccess, FromFiles, SecurityError, read_file};

use super::operation::Request;
use super::parser::Step;
use crate::limits::{AUTH_BYTES_MAX, AUTH_LINE_BYTES_MAX, AUTH_USERS_MAX};
use crate::numbers::unsigned;

const STORED: &[u8] = b"STORED\r\n";
const UNAUTHENTICATED: &[u8] = b"CLIENT_ERROR unauthenticated\r\n";
const FAILURE: &[u8] = b"CLIENT_ERROR authentication failure\r\n";
const BAD_END: &[u8] = b"CLIENT_ERROR bad command line termination\r\n";
const BAD_TOKEN: &[u8] = b"CLIENT_ERROR bad authentication token format\r\n";

/// The users and passwords of a file, read again after changes.
#[derive(Debug)]
pub struct Passwords {
    file: PathBuf,
    users: FromFiles<Users>,
    /// All attempts, and failed attempts.
    pub(crate) attempts: AtomicU64,
    pub(crate) failures: AtomicU64,
}

/// The lines of the file: `user:password`.
struct Users(Vec<u8>);

impl Passwords {
    /// The reply to a wrong password.
    pub(crate) const FAILURE: &[u8] = FAILURE;

    /// Returns true if a step refuses a password.
    pub(crate) fn is_failure(step: &Step<'_>) -> bool {
        matches!(step, Step::Done { request: Request::Reply(reply), .. } if *reply == FAILURE)
    }

    /// Reads a file of lines `user:password`.
    ///
    /// # Errors
    /// The file cannot be read, or is readable for every user; or a line is wrong. The text has no password.
    pub fn from_file(file: impl Into<PathBuf>) -> Result<Self, SecurityError> {
        let file = file.into();
        let users = FromFiles::new(vec![file.clone()], || Users::read(&file))?;
        Ok(Self { file, users, attempts: AtomicU64::new(0), failures: AtomicU64::new(0) })
    }

    /// Makes the next step of an unauthenticated client. Returns whether the client is authenticated now.
    pub(crate) fn step(&self, input: &[u8]) -> (Step<'static>, bool) {
        let done =
            |used, reply| (Step::Done { used, request: Request::Reply(reply) }, reply == STORED);
        let close = (Step::Done { used: 0, request: Request::Close(UNAUTHENTICATED) }, false);
        let Some(end) = memchr::memchr(b'\n', input) else {
            return if input.len() > AUTH_BYTES_MAX {
                close
            } else {
                (Step::More { needed: 0 }, false)
            };
        };
        let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
        let words: Vec<_> = words(line).take(5).collect();
        let bytes = match words.as_slice() {
            [b"set", _, _, _, bytes] => unsigned(bytes),
            _ => None,
        };
        let Some(bytes) = bytes else { return done(end + 1, UNAUTHENTICATED) };
        if bytes > AUTH_BYTES_MAX as u64 {
            return close;
        }
        let used = end + 1 + bytes as usize + 2;
        let Some(value) = input.get(end + 1..used) else {
            return (Step::More { needed: used }, false);
        };
        let Some(value) = value.strip_suffix(b"\r\n") else { return done(used, BAD_END) };
        let mut words = self::words(value);
        let (Some(user), Some(password)) = (words.next(), words.next()) else {
            return done(used, BAD_TOKEN);
        };
        self.attempts.fetch_add(1, Ordering::Relaxed);
        let users = self.users.get(Instant::now(), |former| {
            let users = Users::read(&self.file)?;
            Ok((users.0 != former.0).then_some(users))
        });
        if users.know(user, password) {
            return done(used, STORED);
        }
        self.failures.fetch_add(1, Ordering::Relaxed);
        done(used, FAILURE)
    }
}

impl Users {
    fn read(file: &Path) -> Result<Self, SecurityError> {
        let users = Self(read_file(file, FileAccess::Secret)?);
        let shown = file.display();
        for (line, number) in users.lines() {
            let is_right = matches!(line.iter().position(|byte| *byte == b':'), Some(1..))
                && !line.iter().any(u8::is_ascii_whitespace)
                && line.len() < AUTH_LINE_BYTES_MAX;
            if !is_right || number > AUTH_USERS_MAX {
                return Err(SecurityError::new(format!(
                    "{shown}, line {number}: write USER:PASSWORD, in fewer than {AUTH_LINE_BYTES_MAX} bytes without blanks, for up to \
                     {AUTH_USERS_MAX} users"
                )));
            }
        }
        if users.lines().next().is_none() {
            let text = format!("{shown} has no users: write lines USER:PASSWORD");
            return Err(SecurityError::new(text));
        }
        Ok(users)
    }

    /// Returns the lines with text, by number.
    fn lines(&self) -> impl Iterator<Item = (&[u8], usize)> {
        let lines = self.0.split(|byte| *byte == b'\n');
        let lines = lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        lines.zip(1..).filter(|(line, _)| !line.is_empty())
    }

    /// Compares all users, and all bytes of users of equal length: the time tells nothing about a wrong password.
    fn know(&self, user: &[u8], password: &[u8]) -> bool {
        let wanted = [user, b":", password].concat();
        let are_same = |line: &[u8]| {
            let differing =
                line.iter().zip(&wanted).fold(0, |sum, (a, b)| black_box(sum | (a ^ b)));
            line.len() == wanted.len() && differing == 0
        };
        self.lines().fold(false, |is_known, (line, _)| is_known | are_same(line))
            && !user.contains(&b':')
    }
}

/// Tells nothing: the lines are secret.
impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Users")
    }
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| *byte == b' ').filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn passwords(name: &str, text: &str) -> Result<Passwords, String> {
        let file = std::env::temp_dir().join(format!("petrel-auth-{name}-{}", std::process::id()));
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let passwords = Passwords::from_file(&file).map_err(|error| error.to_string());
        std::fs::remove_file(&file).unwrap();
        passwords
    }

    #[test]
    fn step__answers_as_memcached() {
        let passwords = passwords("step", "ann:secret\r\n\nbob:a:b").unwrap();
        for (input, used, reply) in [
            ("get a\r\n", 7, UNAUTHENTICATED),
            ("set k 0 0 x\r\n", 13, UNAUTHENTICATED),
            ("set k 0 0\r\n", 11, UNAUTHENTICATED),
            ("add k 0 0 1\r\n", 13, UNAUTHENTICATED),
            ("\r\n", 2, UNAUTHENTICATED),
            ("set k 0 0 10\r\nann secret\r\nget a", 26, STORED),
            ("set  any 1 2  12 noreply\nann secret x\r\n", 39, STORED),
            ("set k 0 0 7\r\nbob a:b\r\n", 22, STORED),
            ("set k 0 0 7\r\nbob:a b\r\n", 22, FAILURE),
            ("set k 0 0 10\r\nann secreT\r\n", 26, FAILURE),
            ("set k 0 0 9\r\nann secre\r\n", 24, FAILURE),
            ("set k 0 0 10\r\neve secret\r\n", 26, FAILURE),
            ("set k 0 0 9\r\nann secret\r\n", 24, BAD_END),
            ("set k 0 0 3\r\nann\r\n", 18, BAD_TOKEN),
            ("set k 0 0 0\r\n\r\n", 15, BAD_TOKEN),
        ] {
            let (step, is_in) = passwords.step(input.as_bytes());
            let wanted = Step::Done { used, request: Request::Reply(reply) };
            assert_eq!((step, is_in), (wanted, reply == STORED), "{input:?}");
            for length in 0..used {
                let (step, is_in) = passwords.step(&input.as_bytes()[..length]);
                assert!(
                    matches!(step, Step::More { .. }) && !is_in,
                    "{input:?} {length}: {step:?}"
                );
            }
        }
        let counts =
            [&passwords.attempts, &passwords.failures].map(|it| it.load(Ordering::Relaxed));
        assert_eq!(counts, [7, 4]);
    }

    #[test]
    fn step__of_too_many_bytes_ends_the_connection() {
        let passwords = passwords("long", "ann:secret").unwrap();
        let junk = "x".repeat(AUTH_BYTES_MAX + 1);
        let value = format!("set k 0 0 {}\r\n", AUTH_BYTES_MAX + 1);
        for input in [&junk, &value] {
            let (step, is_in) = passwords.step(input.as_bytes());
            assert!(matches!(step, Step::Done { request: Request::Close(_), .. }) && !is_in);
        }
        assert_eq!(passwords.step(&junk.as_bytes()[1..]).0, Step::More { needed: 0 });
    }

    #[test]
    fn from_file__of_a_wrong_line_names_it_and_no_password() {
        let many = "a:b\n".repeat(AUTH_USERS_MAX + 1);
        for (text, why) in [
            ("", "has no users"),
            ("ann:secret\nbob", "line 2: write USER:PASSWORD"),
            (":secret", "line 1"),
            ("ann:my secret", "line 1"),
            (&format!("ann:{}", "x".repeat(AUTH_LINE_BYTES_MAX)), "line 1"),
            (&many, "line 65"),
        ] {
            let error = passwords("wrong", text).unwrap_err();
            assert!(error.contains(why) && !error.contains("secret"), "{error}");
        }
        let shown = format!("{:?}", passwords("shown", "ann:secret").unwrap());
        assert!(!shown.contains("secret"), "{shown}");
    }
}
