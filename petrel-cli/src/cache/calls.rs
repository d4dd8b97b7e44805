//! `petrel cache get`, `set`, `add`, `replace`, `cas`, `delete`, `touch`, `incr` and `stats`: one call per command.

use std::sync::Arc;
use std::time::Duration;

use petrel::Client;
use petrel::client::ClientConfig;
use petrel_cache::wire::{CountMessage, StoreMessage};
use petrel_cache::{CacheClient, ClientError, Counted, Removed, Stored, Verb};
use petrel_command::Outcome;
use petrel_command::credentials;
use petrel_command::device;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use serde::Serialize;

use crate::cli::{CacheIncrArgs, CacheKeyArgs, CacheServerArgs, CacheStoreArgs, CacheTouchArgs};
use crate::index::print_counters;

/// The value that a look-up found.
#[derive(Serialize)]
struct Found<'a> {
    key: &'a str,
    found: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flags: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
}

#[derive(Serialize)]
struct Change {
    outcome: &'static str,
    #[serde(skip)]
    is_done: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
}

impl Change {
    fn done(outcome: &'static str) -> Self {
        Self { outcome, is_done: true, number: None, version: None }
    }

    /// A change that did not take place.
    fn none(outcome: &'static str) -> Self {
        Self { is_done: false, ..Self::done(outcome) }
    }

    fn print(&self, key: &str, output: Output) -> Result<Outcome, Failure> {
        output.record(self)?;
        if !self.is_done {
            eprintln!("petrel: {key}: {}", self.outcome);
            return Ok(Outcome::Failure);
        }
        output.line(self.number.map_or(self.outcome.to_owned(), |number| number.to_string()))?;
        Ok(Outcome::Success)
    }
}

pub(super) fn get(args: &CacheKeyArgs, output: Output) -> Result<Outcome, Failure> {
    let key = args.key.as_str();
    let found = connect(&args.server)?.get(key.as_bytes()).wait().map_err(failure)?;
    output.record(&Found {
        key,
        found: found.is_some(),
        value: found.as_ref().map(|it| String::from_utf8_lossy(&it.bytes).into_owned()),
        flags: found.as_ref().map(|it| it.flags),
        version: found.as_ref().map(|it| it.cas),
    })?;
    let Some(found) = found else {
        eprintln!("petrel: {key} has no value");
        return Ok(Outcome::Failure);
    };
    output.bytes(&[&found.bytes[..], b"\n"].concat())?;
    Ok(Outcome::Success)
}

pub(super) fn store(
    args: &CacheStoreArgs,
    verb: Verb,
    compare: Option<u64>,
    output: Output,
) -> Result<Outcome, Failure> {
    let (key, value) = (args.of.key.as_bytes(), args.value.as_bytes());
    let (flags, ttl_s) = (args.flags, seconds(args.ttl));
    let message = StoreMessage { verb, compare, flags, ttl_s, key, value };
    let change = match connect(&args.of.server)?.store(&message).wait().map_err(failure)? {
        Stored::Done { cas } => Change { version: Some(cas), ..Change::done("stored") },
        Stored::Refused => Change::none("not stored"),
        Stored::Exists => Change::none("another version"),
        Stored::NotFound => Change::none("no value"),
    };
    change.print(&args.of.key, output)
}

pub(super) fn delete(args: &CacheKeyArgs, output: Output) -> Result<Outcome, Failure> {
    let removed = connect(&args.server)?.delete(args.key.as_bytes(), None).wait();
    let change = match removed.map_err(failure)? {
        Removed::Done => Change::done("deleted"),
        Removed::NotFound | Removed::Exists => Change::none("no value"),
    };
    change.print(&args.key, output)
}

pub(super) fn touch(args: &CacheTouchArgs, output: Output) -> Result<Outcome, Failure> {
    let client = connect(&args.of.server)?;
    let touched =
        client.touch(args.of.key.as_bytes(), seconds(args.ttl)).wait().map_err(failure)?;
    let change = if touched { Change::done("touched") } else { Change::none("no value") };
    change.print(&args.of.key, output)
}

pub(super) fn incr(args: &CacheIncrArgs, output: Output) -> Result<Outcome, Failure> {
    let (key, initial) = (args.of.key.as_bytes(), args.initial);
    let (delta, is_increment) = (args.by.unsigned_abs(), args.by >= 0);
    let message = CountMessage { is_increment, delta, initial, ttl_s: 0, key: key.to_vec() };
    let counted = connect(&args.of.server)?.count(&message).wait().map_err(failure)?;
    let change = match counted {
        Counted::Number { number, cas, .. } => {
            Change { number: Some(number), version: Some(cas), ..Change::done("stored") }
        }
        Counted::NotANumber => Change::none("no number"),
        Counted::NotFound | Counted::Exists => Change::none("no value"),
    };
    change.print(&args.of.key, output)
}

pub(super) fn stats(args: &CacheServerArgs, output: Output) -> Result<Outcome, Failure> {
    let counters = connect(args)?.stats().wait().map_err(failure)?;
    let pairs = counters.iter().map(|(name, value)| (name.clone(), (*value).into()));
    output.record(&pairs.collect::<serde_json::Map<_, _>>())?;
    print_counters(&counters, output)?;
    Ok(Outcome::Success)
}

/// The seconds of a time; 0 for no end. A time below a second is a second.
fn seconds(ttl: Option<Duration>) -> u32 {
    ttl.map_or(0, |ttl| u32::try_from(ttl.as_secs()).unwrap_or(u32::MAX).max(1))
}

/// Connects to the server's first address that answers.
fn connect(args: &CacheServerArgs) -> Result<CacheClient, Failure> {
    let mut config = ClientConfig::default();
    config.timeout = args.timeout;
    args.address.first_that(|address| {
        let mut builder = Client::builder().config(config.clone()).device(device::get());
        if let Some(security) = credentials::get() {
            builder = builder.credentials(Arc::clone(security));
        } else if !address.ip().to_canonical().is_loopback() {
            // A user who names another host wants to call it.
            builder = builder.insecure();
        }
        CacheClient::connect_wait(builder, address).map_err(failure)
    })
}

/// Returns the failure of a subcommand for a call that failed.
fn failure(error: ClientError) -> Failure {
    Failure::new(error.status(), error.to_string())
}
