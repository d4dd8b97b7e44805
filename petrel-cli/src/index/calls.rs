//! `petrel index get`, `put`, `delete`, `scan` and `status`: one call per command.

use std::ops::Bound;

use petrel::client::ClientConfig;
use petrel_command::Outcome;
use petrel_command::client::connect_service;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_index::Client;
use serde::Serialize;
use serde_json::Value;

use super::serve::print_counters;
use crate::cli::{IndexKeyArgs, IndexPutArgs, IndexScanArgs, IndexStatusArgs, ServerArgs};

/// The value that a lookup found or a change replaced.
#[derive(Serialize)]
struct LookupResult<'a> {
    key: &'a str,
    found: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Value>,
}

#[derive(Serialize)]
struct Pair {
    key: Value,
    value: Value,
}

#[derive(Serialize)]
struct SumRecord {
    found: u32,
    sum: u64,
}

pub(super) fn get(args: &IndexKeyArgs, output: Output) -> Result<Outcome, Failure> {
    let key = args.key.as_str();
    let value = match args.bytes {
        true => {
            connect(&args.server)?.get_bytes(key.as_bytes()).wait()?.map(|value| value.to_vec())
        }
        false => {
            let value = connect(&args.server)?.get_word(word(key)?).wait()?;
            value.map(|value| value.to_string().into_bytes())
        }
    };
    let json = value.as_deref().map(|bytes| json_value(bytes, args.bytes));
    output.record(&LookupResult { key, found: value.is_some(), value: json })?;
    let Some(mut value) = value else {
        eprintln!("petrel: {key} has no value");
        return Ok(Outcome::Failure);
    };
    value.push(b'\n');
    output.bytes(&value)?;
    Ok(Outcome::Success)
}

pub(super) fn put(args: &IndexPutArgs, output: Output) -> Result<Outcome, Failure> {
    let (key, server) = (args.of.key.as_str(), &args.of.server);
    let (had_one, former) = match args.of.bytes {
        true => {
            let client = connect(server)?;
            (client.put_bytes(key.as_bytes(), args.value.as_bytes()).wait()?, None)
        }
        false => {
            let (number, value) = (word(key)?, word(&args.value)?);
            let former = connect(server)?.put_word(number, value).wait()?;
            (former.is_some(), former.map(Value::from))
        }
    };
    output.record(&LookupResult { key, found: had_one, value: former })?;
    output.line(if had_one { "replaced" } else { "new" })?;
    Ok(Outcome::Success)
}

pub(super) fn delete(args: &IndexKeyArgs, output: Output) -> Result<Outcome, Failure> {
    let key = args.key.as_str();
    let (was_there, former) = match args.bytes {
        true => (connect(&args.server)?.delete_bytes(key.as_bytes()).wait()?, None),
        false => {
            let former = connect(&args.server)?.delete_word(word(key)?).wait()?;
            (former.is_some(), former.map(Value::from))
        }
    };
    output.record(&LookupResult { key, found: was_there, value: former })?;
    output.line(if was_there { "deleted" } else { "was not there" })?;
    Ok(if was_there { Outcome::Success } else { Outcome::Failure })
}

pub(super) fn scan(args: &IndexScanArgs, output: Output) -> Result<Outcome, Failure> {
    match (args.sum, &args.after) {
        (true, Some(after)) => sum(args, word(after)?, output)?,
        _ if args.bytes => scan_bytes(args, output)?,
        _ => scan_words(args, output)?,
    }
    Ok(Outcome::Success)
}

fn sum(args: &IndexScanArgs, after: u64, output: Output) -> Result<(), Failure> {
    let limit = u32::try_from(args.limit).unwrap_or(u32::MAX);
    let sum = connect(&args.server)?.sum_words(after, limit).wait()?;
    let (found, sum) = (sum.found.get(), sum.sum.get());
    output.record(&SumRecord { found, sum })?;
    Ok(output.line(format!("{sum} ({found} values)"))?)
}

fn scan_words(args: &IndexScanArgs, output: Output) -> Result<(), Failure> {
    let from = match (&args.from, &args.after) {
        (Some(first), _) => Bound::Included(word(first)?),
        (None, Some(before)) => Bound::Excluded(word(before)?),
        (None, None) => Bound::Unbounded,
    };
    for (key, value) in connect(&args.server)?.scan_words(from, args.limit).wait()? {
        output.record(&Pair { key: key.into(), value: value.into() })?;
        output.line(format!("{key}\t{value}"))?;
    }
    Ok(())
}

fn scan_bytes(args: &IndexScanArgs, output: Output) -> Result<(), Failure> {
    let from = match (&args.from, &args.after) {
        (Some(first), _) => Bound::Included(first.as_bytes()),
        (None, Some(before)) => Bound::Excluded(before.as_bytes()),
        (None, None) => Bound::Unbounded,
    };
    for (key, value) in connect(&args.server)?.scan_bytes(from, args.limit).wait()? {
        output.record(&Pair { key: json_value(&key, true), value: json_value(&value, true) })?;
        let text = String::from_utf8_lossy;
        output.line(format!("{}\t{}", text(&key), text(&value)))?;
    }
    Ok(())
}

pub(super) fn status(args: &IndexStatusArgs, output: Output) -> Result<Outcome, Failure> {
    let counters = connect(&args.server)?.status().wait()?;
    let pairs = counters.iter().map(|(name, value)| (name.clone(), (*value).into()));
    output.record(&pairs.collect::<serde_json::Map<_, Value>>())?;
    print_counters(&counters, output)?;
    Ok(Outcome::Success)
}

fn connect(args: &ServerArgs) -> Result<Client, Failure> {
    let mut config = ClientConfig::default();
    config.timeout = args.timeout;
    let transports = args.transport.allowed();
    Ok(connect_service(&args.address, args.endpoint, transports, &config)?.into())
}

/// Parses a number, in decimal or in hexadecimal after `0x`.
fn word(text: &str) -> Result<u64, Failure> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| {
        let text = format!(
            "'{text}' is not a word: write a number below 2^64, as in 17 or 0x1f, or use --bytes"
        );
        Failure::new(petrel::Status::InvalidArgument, text)
    })
}

/// Returns bytes for JSON: text if they are UTF-8, else numbers; a word as a number.
fn json_value(bytes: &[u8], is_bytes: bool) -> Value {
    match str::from_utf8(bytes) {
        Ok(text) if is_bytes => text.into(),
        Ok(number) => number.parse::<u64>().map_or_else(|_| number.into(), Value::from),
        Err(_) => bytes.to_vec().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word__takes_both_writings_and_says_what_else_there_is() {
        assert_eq!((word("17").unwrap(), word("0x1f").unwrap()), (17, 31));
        let failure = word("petrel").unwrap_err();
        assert!(failure.to_string().contains("--bytes"), "{failure}");
    }

    #[test]
    fn json_value__is_text_where_possible() {
        assert_eq!(json_value(b"17", true), Value::from("17"));
        assert_eq!(json_value(b"17", false), Value::from(17));
        assert_eq!(json_value(&[255, 1], true), serde_json::json!([255, 1]));
    }
}
