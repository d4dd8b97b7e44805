//! An emulated machine with an RDMA card in software.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::Error;

/// The status of `tools/guest/boot` on a host without an emulator, a kernel or the programs of the guest.
const MISSING: i32 = 3;

/// Boots the guest of `tools/guest/boot` with some programs, and runs a script of bash in it as root.
///
/// Returns the guest's output, with its status. In the guest the programs are found by their file names.
///
/// # Errors
/// The host lacks an emulator, a kernel, or a program of the guest.
pub fn in_guest(script: &str, programs: &[&Path]) -> Result<Output, Error> {
    let boot = Path::new(env!("CARGO_MANIFEST_DIR")).join("../guest/boot");
    let file = Script::new(script);
    let mut command = Command::new(&boot);
    command.arg(&file.0).args(programs).stdin(Stdio::null());
    let name = || format!("{}", boot.display());
    let output = command.output().map_err(|error| Error::NotRun { command: name(), error })?;
    if output.status.code() == Some(MISSING) {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Error::Failed { command: name(), said });
    }
    Ok(output)
}

/// A file with the script, removed at the end.
struct Script(PathBuf);

impl Script {
    fn new(text: &str) -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "petrel-guest-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).expect("the temporary folder can be written");
        Self(path)
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        // A file that is left is harmless.
        let _ = std::fs::remove_file(&self.0);
    }
}
