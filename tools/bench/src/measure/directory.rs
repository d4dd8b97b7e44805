//! A directory of this process's own.

use std::path::{Path, PathBuf};

use petrel_command::failure::Failure;

/// A directory that is removed when it is dropped.
pub struct Directory(PathBuf);

impl Directory {
    /// Creates a directory for the benchmark `name`.
    pub fn within(parent: &Path, name: &str) -> Result<Self, Failure> {
        let path = parent.join(format!("petrel-bench-{name}-{}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A directory that cannot be removed stays for the user to see.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
