//! `petrel kv save` and `petrel kv restore`.

use std::fmt;
use std::fs::File;
use std::io::{BufReader, Seek};
use std::path::Path;

use petrel::Status;
use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_command::units::format_bytes;
use petrel_kv::backup::{BackupError, Head, Reader, Writer};
use petrel_kv::client::{Consistency, Save};
use serde::Serialize;

use super::Cluster;
use super::whole_file::WholeFile;
use crate::cli::{KvRestoreArgs, KvSaveArgs};

/// Bytes read from a file at once.
const READ_BYTES: usize = 256 << 10;

#[derive(Serialize)]
pub(super) struct SavedRecord {
    revision: u64,
    keys: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct RestoredRecord {
    revision: u64,
    keys: u64,
}

impl SavedRecord {
    pub(super) fn new(head: Head) -> Self {
        Self { revision: head.revision, keys: head.keys, bytes: head.bytes }
    }
}

impl fmt::Display for SavedRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { revision, keys, bytes } = self;
        write!(f, "{keys} keys, {}, at revision {revision}", format_bytes(*bytes))
    }
}

pub(super) fn save(args: &KvSaveArgs, output: Output) -> Result<Outcome, Failure> {
    let mut cluster = Cluster::new(&args.cluster)?;
    let mut save = begin(&mut cluster, args.stale)?;
    let head = save.head();
    let failed = |error: BackupError| named(&args.file, &error);
    let mut writer = Writer::new(WholeFile::create(&args.file)?, head).map_err(failed)?;
    let (mut progress, mut keys) = (output.progress(head.keys, "keys"), 0);
    while let Some(block) = cluster.run(async |_| save.next_block().await)? {
        let pairs = block.pairs();
        writer.add(&pairs).map_err(failed)?;
        keys += pairs.len() as u64;
        progress.set(keys);
    }
    writer.finish().map_err(failed)?.finish()?;
    drop(progress);
    let record = SavedRecord::new(head);
    output.line(record.to_string())?;
    output.record(&record)?;
    Ok(Outcome::Success)
}

/// Begins a save at the leader, or at any replica.
pub(super) fn begin(cluster: &mut Cluster, stale: bool) -> Result<Save, Failure> {
    let consistency = if stale { Consistency::Stale } else { Consistency::Linearizable };
    cluster.run(async |client| client.save(consistency).await)
}

pub(super) fn restore(args: &KvRestoreArgs, output: Output) -> Result<Outcome, Failure> {
    let mut cluster = Cluster::new(&args.cluster)?;
    let Some(path) = &args.file else {
        cluster.run(async |client| client.abandon_restore().await)?;
        output.line("no restore is under way: the cluster serves")?;
        output.record(&RestoredRecord { revision: 0, keys: 0 })?;
        return Ok(Outcome::Success);
    };
    let failed = |error: BackupError| named(path, &error);
    let opened = File::open(path);
    let mut file = opened.map_err(|error| named(path, &BackupError::Io(error)))?;
    open(&file).and_then(Reader::verify).map_err(failed)?;
    file.rewind()?;
    let mut reader = open(&file).map_err(failed)?;
    let Head { revision, keys, .. } = reader.head();

    let mut progress = output.progress(keys, "keys");
    let mut restore = cluster.run(async |client| client.restore(revision).await)?;
    let mut restored = 0;
    while let Some(pairs) = reader.next_block().map_err(failed).map_err(broken_off)? {
        cluster.run(async |_| restore.add(pairs.iter()).await).map_err(broken_off)?;
        restored += pairs.len() as u64;
        progress.set(restored);
    }
    cluster.run(async |_| restore.finish().await).map_err(broken_off)?;
    drop(progress);
    output.line(format!("restored {keys} keys, at revision {revision}"))?;
    output.record(&RestoredRecord { revision, keys })?;
    Ok(Outcome::Success)
}

fn open(file: &File) -> Result<Reader<BufReader<&File>>, BackupError> {
    Reader::new(BufReader::with_capacity(READ_BYTES, file))
}

fn named(path: &Path, error: &BackupError) -> Failure {
    let status = match error {
        BackupError::Io(_) => Status::Unavailable,
        _ => Status::DataLoss,
    };
    Failure::new(status, format!("{}: {error}", path.display()))
}

/// Says the state of the cluster.
fn broken_off(failure: Failure) -> Failure {
    let status = failure.status().unwrap_or(Status::Unknown);
    let advice =
        "The cluster serves nothing before a whole restore, or `petrel kv restore --abandon`";
    Failure::new(status, format!("{failure}. {advice}"))
}
