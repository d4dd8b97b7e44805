//! The file of results: JSON objects with a `kind`, one per line.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use peers_common::Failure;
use serde::Serialize;

use crate::catalog::Measurement;
use crate::host::Host;
use crate::summary::Row;
use crate::window::Window;

/// A line of the file.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum Record<'a> {
    /// Date, machine and command.
    Run(&'a Host),
    /// A skipped peer.
    Skipped {
        peer: &'a str,
        why: &'a str,
    },
    /// A window without a result.
    Failed {
        peer: &'a str,
        variant: &'a str,
        measurement: Measurement,
        why: &'a str,
    },
    Window(&'a Window),
    /// A row of the table.
    Median(&'a Row),
}

/// Writes the file, if requested, line by line: an interrupted run keeps its results.
pub(crate) struct Recorder(Option<File>);

impl Recorder {
    pub(crate) fn create(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else { return Ok(Self(None)) };
        let file = File::create(path)
            .map_err(|error| format!("cannot create {}: {error}", path.display()))?;
        Ok(Self(Some(file)))
    }

    pub(crate) fn put(&mut self, record: &Record<'_>) -> Result<(), Failure> {
        let Some(file) = &mut self.0 else { return Ok(()) };
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        Ok(file.write_all(&line)?)
    }
}
