//! Processes of an example program, which the program starts in a role, and kills.

use std::error::Error;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::thread;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// A process of this program, in a role.
pub(crate) struct Process(Child);

impl Process {
    /// Starts the program with these arguments. The process ends with this program.
    pub(crate) fn start(arguments: &[&str]) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        Ok(Self(command.args(arguments).stdin(Stdio::piped()).spawn()?))
    }

    /// Kills the process (SIGKILL).
    pub(crate) fn kill(&mut self) -> Result<(), Failure> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }

    #[allow(dead_code, reason = "not every example stops processes")]
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// Ends the process with its parent.
#[allow(dead_code, reason = "not every example has processes that end so")]
pub(crate) fn end_with_parent() {
    thread::spawn(|| {
        // An error is an end, too.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
}

/// Returns an address at which nothing listens.
#[allow(dead_code, reason = "not every example has servers at such addresses")]
pub(crate) fn free_address() -> Result<SocketAddr, Failure> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}
