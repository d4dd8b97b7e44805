//! Arguments of the commands of `petrel kv` that move all keys: save, restore, export and import.

use std::path::PathBuf;

use clap::Args;

use super::kv::{ClusterArgs, FormatArgs};

/// Save all keys to a file, at one moment, while the store serves on
///
/// The file has the keys with their revisions, and checks of each block and of the whole. It appears when it is
/// whole and on disk; a former file of this name stays until then.
#[derive(Args, Debug)]
#[command(after_long_help = SAVE_AFTER_HELP)]
pub(crate) struct KvSaveArgs {
    /// The file to write
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Save the state of any replica, which may be slightly out of date, and spare the leader the work
    #[arg(long)]
    pub(crate) stale: bool,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

const SAVE_AFTER_HELP: &str = "\
Examples:
  petrel kv save /backup/kv.petrelkv --servers 127.0.0.1:7001,127.0.0.1:7002
  petrel kv save kv.petrelkv --stale --json --servers 127.0.0.1:7001

With --json: {revision, keys, bytes}, the state that the file has.";

/// Restore a saved store, in a cluster without keys
///
/// Reads the whole file first: nothing is sent of a damaged one. Until the last key has arrived, the cluster refuses
/// reads and writes. If the command is broken off, run it again, or give the cluster back its empty state by
/// --abandon. Later revisions are greater than all saved ones.
#[derive(Args, Debug)]
#[command(after_long_help = RESTORE_AFTER_HELP)]
pub(crate) struct KvRestoreArgs {
    /// The file that `petrel kv save` wrote
    #[arg(value_name = "FILE", required_unless_present = "abandon")]
    pub(crate) file: Option<PathBuf>,

    /// Drop the keys of a restore that was broken off: the cluster is empty then, and serves
    #[arg(long, conflicts_with = "file")]
    pub(crate) abandon: bool,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

const RESTORE_AFTER_HELP: &str = "\
Examples:
  petrel kv restore /backup/kv.petrelkv --servers 127.0.0.1:7001
  petrel kv restore --abandon --json --servers 127.0.0.1:7001

With --json: {revision, keys}, the saved state.";

/// Write all keys as lines of JSON, at one moment
///
/// A line per key, {key, revision, value}, in the order of the keys; key_hex and value_hex for bytes that are not
/// UTF-8.
#[derive(Args, Debug)]
#[command(after_long_help = EXPORT_AFTER_HELP)]
pub(crate) struct KvExportArgs {
    /// The file to write; - for standard output
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Export the state of any replica, which may be slightly out of date, and spare the leader the work
    #[arg(long)]
    pub(crate) stale: bool,

    #[command(flatten)]
    pub(crate) format: FormatArgs,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

const EXPORT_AFTER_HELP: &str = "\
Examples:
  petrel kv export keys.json --servers 127.0.0.1:7001
  petrel kv export - --hex --servers 127.0.0.1:7001

With --json: {revision, keys, bytes}, unless the lines go to standard output.";

/// Set keys from lines of JSON
///
/// Lines are those of `petrel kv export` and `petrel kv scan --json`; other fields, such as the revision, are
/// ignored. Each key is set as by `petrel kv put`, and a later line wins. A line that is not understood is skipped
/// and named by its number on standard error, and the exit code is 1.
#[derive(Args, Debug)]
#[command(after_long_help = IMPORT_AFTER_HELP)]
pub(crate) struct KvImportArgs {
    /// The file to read; - for standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    #[command(flatten)]
    pub(crate) format: FormatArgs,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

const IMPORT_AFTER_HELP: &str = "\
Examples:
  petrel kv import keys.json --servers 127.0.0.1:7001
  petrel kv import - --hex --json --servers 127.0.0.1:7001

With --json: {keys, bad_lines}.";
