//! Figures of Petrel's own source. `petrel-house language` measures the language of comments and documents,
//! `petrel-house shape` the imports of the code, `petrel-house lines` counts lines, and `petrel-house links` follows the links of the documents.
//! `CONTRIBUTING.md` lists the bounds; the tests of this crate hold those for language, links and circles of rooms.

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
}
