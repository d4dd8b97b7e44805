//! `petrel kv watch`.

use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_kv::KvError;
use petrel_kv::api::Change;
use petrel_kv::client::Watch;
use serde::Serialize;

use super::Cluster;
use crate::cli::{FormatArgs, KvWatchArgs};

/// A change, as a line of JSON.
#[derive(Serialize)]
struct ChangeRecord {
    revision: u64,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_hex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_hex: Option<String>,
}

impl ChangeRecord {
    fn new(revision: u64, change: &Change<'_>, format: FormatArgs) -> Self {
        let (key, value) = (format.field(change.key), change.value.map(|it| format.field(it)));
        let (value, value_hex) = value.map_or((None, None), |it| (it.text, it.hex));
        Self { revision, kind: kind(change), key: key.text, key_hex: key.hex, value, value_hex }
    }
}

fn kind(change: &Change<'_>) -> &'static str {
    if change.value.is_some() { "put" } else { "delete" }
}

/// Prints the changes, until the process is interrupted.
pub(super) fn run(args: &KvWatchArgs, output: Output) -> Result<Outcome, Failure> {
    let mut cluster = Cluster::new(&args.cluster)?;
    let mut watch = begin(args, &cluster)?;
    let mut left = args.limit.unwrap_or(u64::MAX);
    while left > 0 {
        // While no replica serves the watch, the command goes on, and says so.
        let changes = match cluster.run(async |_| Ok(watch.next().await))? {
            Err(error @ (KvError::Timeout { .. } | KvError::Unavailable(_))) => {
                eprintln!("petrel: {error}");
                continue;
            }
            changes => cluster.run(async |_| changes)?,
        };
        for change in changes.iter() {
            let revision = changes.revision();
            output.record(&ChangeRecord::new(revision, &change, args.format))?;
            let key = args.format.line(change.key);
            let value = change.value.map(|it| format!("\t{}", args.format.line(it)));
            let value = value.unwrap_or_default();
            output.line(format!("{revision}\t{}\t{key}{value}", kind(&change)))?;
        }
        left -= 1;
    }
    Ok(Outcome::Success)
}

fn begin(args: &KvWatchArgs, cluster: &Cluster) -> Result<Watch, Failure> {
    let (client, bytes) = (&cluster.client, |text: &String| args.format.bytes(text));
    let watch = match (&args.key, &args.prefix, args.range.as_deref()) {
        (Some(key), ..) => client.watch_key(&bytes(key)?),
        (None, Some(prefix), _) => client.watch_prefix(&bytes(prefix)?),
        (None, None, Some([from, until])) => client.watch(&bytes(from)?, Some(&bytes(until)?)),
        (None, None, _) => client.watch(b"", None),
    };
    Ok(match args.from {
        Some(revision) => watch.since(revision),
        None => watch,
    })
}
