//! The reasons why a probe could not run.

use std::io;
use std::path::PathBuf;

/// The reason why a probe could not run. A test that finds a defect is no failure.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    #[error("the build failed; see above")]
    Build,
    #[error("{}: {why}", file.display())]
    Syntax { file: PathBuf, why: String },
    #[error("the compiler has something against the copy that is no mutant's: {0}")]
    NotAMutant(String),
    #[error("the copy cannot have {}: {why}", file.display())]
    Uncopied { file: PathBuf, why: String },
    #[error("the build has no {0}")]
    NoArtifact(String),
    #[error("without any defect `{step}` already fails: see {log}")]
    Control { step: String, log: PathBuf },
    #[error("`{0}` comes to no mutant's place: it has run nothing")]
    Idle(String),
    #[error("no mutant of the chosen crates has the number {0}, or it does not compile")]
    UnknownMutant(u32),
    #[error("no defect has the name `{0}`; `planted --list` has the names")]
    UnknownDefect(String),
}

impl Failure {
    /// Returns a function for `map_err` that names the failed operation.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Failure {
        let what = what.into();
        move |source| Failure::Io { what, source }
    }
}
