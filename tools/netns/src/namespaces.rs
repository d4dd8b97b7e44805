//! A program that starts itself again in new namespaces.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use crate::tool::{Error, run};

/// The new namespaces of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// A network namespace.
    Network,
    /// A network namespace and a process namespace. The program is the first process there, and all of the program's processes end
    /// with the program.
    NetworkAndProcesses,
}

/// A way in which this user can create namespaces: as root, or by a user namespace where the host permits it.
#[derive(Clone, Copy, Debug)]
pub struct Namespaces {
    flags: &'static [&'static str],
}

impl Isolation {
    /// The flags of `unshare` for root, and for other users.
    fn flags(self) -> [&'static [&'static str]; 2] {
        match self {
            Self::Network => [&["--net"], &["--user", "--map-root-user", "--net"]],
            Self::NetworkAndProcesses => [
                &["--net", "--pid", "--fork", "--kill-child", "--mount-proc"],
                &[
                    "--user",
                    "--map-root-user",
                    "--net",
                    "--pid",
                    "--fork",
                    "--kill-child",
                    "--mount-proc",
                ],
            ],
        }
    }
}

impl Namespaces {
    /// Finds a way to create namespaces in which a shell can run the script `trial`, a short version of the intended
    /// work. `input` is the script's standard input.
    ///
    /// # Errors
    /// The obstacle to the first way, if no way succeeds.
    pub fn find(isolation: Isolation, trial: &str, input: &str) -> Result<Self, Error> {
        let attempt = |flags: &'static [&'static str]| {
            run("unshare", &[flags, &["sh", "-c", trial]].concat(), input).map(|_| Self { flags })
        };
        let [as_root, as_user] = isolation.flags();
        attempt(as_root).or_else(|obstacle| attempt(as_user).map_err(|_| obstacle))
    }

    /// Returns a command that runs a program in new namespaces.
    pub fn command(self, program: &Path) -> Command {
        let mut command = Command::new("unshare");
        command.args(self.flags).arg(program);
        command
    }

    /// Runs this program again in new namespaces, with equal arguments and with an environment variable by which the
    /// program recognises that it is inside. Returns true if the program succeeded.
    ///
    /// Standard input of the inner program stays empty, and closes with this process: see [`end_with_parent`].
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn run_again(self, variable: &str, value: impl AsRef<OsStr>) -> io::Result<bool> {
        let mut child = self
            .command(&std::env::current_exe()?)
            .args(std::env::args_os().skip(1))
            .env(variable, value)
            .stdin(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take();
        let status = child.wait()?;
        drop(input);
        Ok(status.success())
    }
}

/// Ends this process, with exit code 130, at the end of its standard input: when the process that called
/// [`Namespaces::run_again`] has ended. `clean_up` runs before, on a thread of its own.
pub fn end_with_parent(clean_up: impl FnOnce() + Send + 'static) {
    thread::spawn(move || {
        while io::stdin().read(&mut [0]).is_ok_and(|count| count > 0) {}
        clean_up();
        std::process::exit(130);
    });
}
