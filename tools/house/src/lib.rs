//! Figures of Petrel's own source. `petrel-house language` measures the language of comments and documents,
//! `petrel-house shape` the shape of the code, `petrel-house lines` counts lines, `petrel-house links` follows the links of the documents, and
//! `petrel-house dependencies` checks licences and sources. `CONTRIBUTING.md` lists the bounds; the tests of this crate
//! hold those for language, links and dependencies.

pub mod dependencies;
mod imports;
pub mod language;
pub mod lines;
pub mod links;
pub mod shape;
pub mod source;
mod test_code;

use std::path::PathBuf;

/// The reason why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A file or folder cannot be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        error: std::io::Error,
    },
    /// A source file is not Rust.
    #[error("{}: {error}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The parser's reason.
        error: syn::Error,
    },
    /// The rules for dependencies contain no list of licences.
    #[error("{}: no list `allow` of licences under [licenses]", path.display())]
    Rules {
        /// The file.
        path: PathBuf,
    },
    /// Cargo cannot resolve the dependencies.
    #[error("{error}")]
    Cargo {
        /// Cargo's reason.
        error: Box<cargo_metadata::Error>,
    },
}
