//! `petrel kv get`, `put`, `delete`, `cas` and `scan`.

use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_kv::api::Pair;
use petrel_kv::client::{Cas, Consistency, after_prefix};
use petrel_kv::command::Expected;
use serde::Serialize;

use super::Cluster;
use crate::cli::{
    ExpectedArgs, FormatArgs, KvCasArgs, KvDeleteArgs, KvGetArgs, KvPutArgs, KvScanArgs,
};

#[derive(Serialize)]
struct GetRecord {
    found: bool,
    revision: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_hex: Option<String>,
}

#[derive(Serialize)]
struct PutRecord {
    revision: u64,
    replaced: bool,
}

#[derive(Serialize)]
struct DeleteRecord {
    existed: bool,
}

#[derive(Serialize)]
struct CompareRecord {
    done: bool,
    revision: Option<u64>,
}

/// A key with its revision and value, as a line of JSON.
#[derive(Serialize)]
pub(super) struct ScanRecord {
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_hex: Option<String>,
    revision: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_hex: Option<String>,
}

impl ScanRecord {
    pub(super) fn new(pair: &Pair<'_>, format: FormatArgs) -> Self {
        let (key, value) = (format.field(pair.key), format.field(pair.value));
        let (key, key_hex, value, value_hex) = (key.text, key.hex, value.text, value.hex);
        Self { key, key_hex, revision: pair.revision, value, value_hex }
    }
}

pub(super) fn get(args: &KvGetArgs, output: Output) -> Result<Outcome, Failure> {
    let key = args.of.format.bytes(&args.of.key)?;
    let consistency = consistency(args.stale);
    let value = Cluster::new(&args.of.cluster)?
        .run(async |client| client.get_with(&key, consistency).await)?;
    let Some(value) = value else {
        if !output.is_json() {
            eprintln!("petrel: there is no key {}", args.of.format.line(&key));
        }
        output.record(&GetRecord { found: false, revision: None, value: None, value_hex: None })?;
        return Ok(Outcome::Failure);
    };
    let field = args.of.format.field(&value);
    let revision = Some(value.revision());
    output.record(&GetRecord { found: true, revision, value: field.text, value_hex: field.hex })?;
    match args.of.format.hex {
        true => output.line(args.of.format.line(&value))?,
        false => output.bytes(&value)?,
    }
    Ok(Outcome::Success)
}

pub(super) fn put(args: &KvPutArgs, output: Output) -> Result<Outcome, Failure> {
    let (key, value) = (args.of.format.bytes(&args.of.key)?, args.of.format.bytes(&args.value)?);
    let put = Cluster::new(&args.of.cluster)?.run(async |client| match (args.lease, args.ttl) {
        (Some(lease), _) => client.put_leased(&key, &value, lease).await,
        (None, Some(ttl)) => client.put_for(&key, &value, ttl).await,
        (None, None) => client.put(&key, &value).await,
    })?;
    let (revision, replaced) = (put.revision, put.replaced);
    let how = if replaced { "replaced" } else { "new" };
    output.line(format!("{how}, revision {revision}"))?;
    output.record(&PutRecord { revision, replaced })?;
    Ok(Outcome::Success)
}

pub(super) fn delete(args: &KvDeleteArgs, output: Output) -> Result<Outcome, Failure> {
    let key = args.of.format.bytes(&args.of.key)?;
    let existed = Cluster::new(&args.of.cluster)?.run(async |client| client.delete(&key).await)?;
    output.line(if existed { "deleted" } else { "it was not there" })?;
    output.record(&DeleteRecord { existed })?;
    Ok(Outcome::Success)
}

pub(super) fn cas(args: &KvCasArgs, output: Output) -> Result<Outcome, Failure> {
    let (key, value) = (args.of.format.bytes(&args.of.key)?, args.of.format.bytes(&args.value)?);
    let ExpectedArgs { revision, expect, .. } = &args.expected;
    let value_expected = expect.as_ref().map(|text| args.of.format.bytes(text)).transpose()?;
    let expected = match (revision, &value_expected) {
        (Some(revision), _) => Expected::Revision(*revision),
        (None, Some(value)) => Expected::Value(value),
        (None, None) => Expected::Absent,
    };
    let cas = Cluster::new(&args.of.cluster)?.run(async |client| match args.lease {
        Some(lease) => client.cas_leased(&key, expected, &value, lease).await,
        None => client.cas(&key, expected, &value).await,
    })?;
    let (done, revision, line) = match cas {
        Cas::Done { revision } => (true, Some(revision), format!("done, revision {revision}")),
        Cas::Mismatch { revision: Some(revision) } => {
            (false, Some(revision), format!("not as expected: the key has revision {revision}"))
        }
        Cas::Mismatch { revision: None } => {
            (false, None, "not as expected: there is no such key".to_owned())
        }
    };
    output.line(line)?;
    output.record(&CompareRecord { done, revision })?;
    Ok(if done { Outcome::Success } else { Outcome::Failure })
}

pub(super) fn scan(args: &KvScanArgs, output: Output) -> Result<Outcome, Failure> {
    let from = args.format.bytes(&args.from)?;
    let until = match (&args.until, args.prefix) {
        (Some(until), _) => Some(args.format.bytes(until)?),
        (None, true) => after_prefix(&from),
        (None, false) => None,
    };
    let mut cluster = Cluster::new(&args.cluster)?;
    let mut scan = cluster.client.scan(&from, until.as_deref());
    scan = scan.consistency(consistency(args.stale)).limit(args.limit.unwrap_or(u64::MAX));
    while let Some(page) = cluster.run(async |_| scan.next_page().await)? {
        for pair in page.pairs().iter() {
            output.record(&ScanRecord::new(&pair, args.format))?;
            let (key, value) = (args.format.line(pair.key), args.format.line(pair.value));
            output.line(format!("{key}\t{value}"))?;
        }
    }
    Ok(Outcome::Success)
}

fn consistency(stale: bool) -> Consistency {
    if stale { Consistency::Stale } else { Consistency::Linearizable }
}
