//! Runs meta commands, and writes the replies.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::clock::Clock;
use super::execute::store_error;
use super::flags;
use super::numbers::put;
use super::operation::{MetaCommand, MetaParams, Operation};
use super::replies::NOT_A_NUMBER;
use crate::key::Key;
use crate::partition::{Arithmetic, Counted, Fetch, Fetched, Partition, Removed, Store, Stored};

/// The values behind the flags of a reply.
#[derive(Default)]
struct Facts {
    cas: u64,
    client_flags: u32,
    value_bytes: usize,
    was_fetched: bool,
    idle_s: u32,
    /// Seconds that the item has left; `None` without an end.
    ttl_s: Option<u32>,
}

/// The key of a reply, as the client knows it.
struct KeyText<'a> {
    key: Key<'a>,
    is_base64: bool,
}

/// A meta command with its key and flags.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) clock: &'a Clock,
    pub(super) key: Key<'a>,
    pub(super) params: &'a MetaParams,
    pub(super) operation: &'a Operation<'a>,
}

pub(super) fn execute_meta(
    partition: &mut Partition,
    command: MetaCommand,
    request: &Request<'_>,
    out: &mut Vec<u8>,
) {
    let run = match command {
        MetaCommand::Get => get,
        MetaCommand::Set => set,
        MetaCommand::Delete => delete,
        MetaCommand::Count => count,
        MetaCommand::Debug => debug,
    };
    run(partition, request, out);
}

fn get(partition: &mut Partition, request: &Request<'_>, out: &mut Vec<u8>) {
    let Request { clock, key, params, operation } = *request;
    let now = partition.time();
    let fetch = Fetch {
        touch: params.exptime.map(|exptime| clock.expiry(exptime, now)),
        vivify: params.vivify.map(|exptime| clock.expiry(exptime, now)),
        recache_s: params.recache_s,
        is_silent: params.is_silent,
    };
    let text = KeyText { key, is_base64: params.is_base64 };
    match partition.fetch(key, &fetch) {
        Err(error) => out.extend_from_slice(store_error(error)),
        Ok(None) if params.is_quiet => {}
        Ok(None) => {
            out.extend_from_slice(b"EN");
            put_identity(out, operation.flags, &text);
            out.extend_from_slice(b"\r\n");
        }
        Ok(Some(found)) => put_found(out, &found, params, operation.flags, &text, now),
    }
}

/// Appends a found item: the flags that were asked for, and those that say who makes a new value.
fn put_found(
    out: &mut Vec<u8>,
    found: &Fetched<'_>,
    params: &MetaParams,
    flags: &[u8],
    text: &KeyText<'_>,
    now: u32,
) {
    let facts = Facts {
        cas: found.item.cas,
        client_flags: found.item.flags,
        value_bytes: found.item.value.len(),
        was_fetched: found.was_fetched,
        idle_s: found.idle_s,
        ttl_s: ttl_s(found.item.expiry, now),
    };
    put_head(out, params.wants_value.then_some(facts.value_bytes));
    put_flags(out, flags, &facts, text);
    for (is_set, letter) in
        [(found.other_has_won, b'Z'), (found.is_stale, b'X'), (found.has_won, b'W')]
    {
        if is_set {
            out.extend_from_slice(&[b' ', letter]);
        }
    }
    out.extend_from_slice(b"\r\n");
    if params.wants_value {
        out.extend_from_slice(found.item.value);
        out.extend_from_slice(b"\r\n");
    }
}

fn set(partition: &mut Partition, request: &Request<'_>, out: &mut Vec<u8>) {
    let Request { clock, key, params, operation } = *request;
    let store = Store {
        key,
        value: operation.value,
        flags: params.client_flags,
        expiry: clock.expiry(params.exptime.unwrap_or(0), partition.time()),
        verb: params.verb,
        compare: params.compare,
        allows_stale: params.invalidates,
    };
    let (code, cas): (&[u8], u64) = match partition.store(&store) {
        Ok(Stored::Done { .. }) if params.is_quiet => return,
        Ok(Stored::Done { cas }) => (b"HD", cas),
        Ok(Stored::Refused) => (b"NS", 0),
        Ok(Stored::Exists) => (b"EX", 0),
        Ok(Stored::NotFound) => (b"NF", 0),
        Err(error) => return out.extend_from_slice(store_error(error)),
    };
    out.extend_from_slice(code);
    let text = KeyText { key, is_base64: params.is_base64 };
    for (letter, token) in flags::each(operation.flags) {
        match letter {
            b'c' => put_number(out, b'c', cas),
            _ => put_identity_flag(out, letter, token, &text),
        }
    }
    out.extend_from_slice(b"\r\n");
}

fn delete(partition: &mut Partition, request: &Request<'_>, out: &mut Vec<u8>) {
    let Request { clock, key, params, operation } = *request;
    let expiry = params.exptime.map(|exptime| clock.expiry(exptime, partition.time()));
    let removed = match params.invalidates {
        true => partition.invalidate(key, params.compare, expiry),
        false => partition.delete(key, params.compare),
    };
    let code: &[u8] = match removed {
        Removed::Done if params.is_quiet => return,
        Removed::Done => b"HD",
        Removed::NotFound => b"NF",
        Removed::Exists => b"EX",
    };
    out.extend_from_slice(code);
    put_identity(out, operation.flags, &KeyText { key, is_base64: params.is_base64 });
    out.extend_from_slice(b"\r\n");
}

fn count(partition: &mut Partition, request: &Request<'_>, out: &mut Vec<u8>) {
    let Request { clock, key, params, operation } = *request;
    let now = partition.time();
    let expiry = |exptime| clock.expiry(exptime, now);
    let arithmetic = Arithmetic {
        key,
        delta: params.delta,
        is_increment: params.is_increment,
        compare: params.compare,
        touch: params.exptime.map(expiry),
        initial: params.vivify.map(|exptime| (params.initial, expiry(exptime))),
    };
    let text = KeyText { key, is_base64: params.is_base64 };
    let code: &[u8] = match partition.count(&arithmetic) {
        Ok(Counted::Number { number, cas, expiry }) => {
            if !params.is_quiet {
                let facts = Facts { cas, ttl_s: ttl_s(expiry, now), ..Facts::default() };
                put_counted(out, number, &facts, params, operation.flags, &text);
            }
            return;
        }
        Ok(Counted::NotFound) => b"NF",
        Ok(Counted::Exists) => b"EX",
        Ok(Counted::NotANumber) => return out.extend_from_slice(NOT_A_NUMBER),
        Err(error) => return out.extend_from_slice(store_error(error)),
    };
    out.extend_from_slice(code);
    put_identity(out, operation.flags, &text);
    out.extend_from_slice(b"\r\n");
}

fn put_counted(
    out: &mut Vec<u8>,
    number: u64,
    facts: &Facts,
    params: &MetaParams,
    flags: &[u8],
    text: &KeyText<'_>,
) {
    let mut digits = itoa::Buffer::new();
    let digits = digits.format(number).as_bytes();
    put_head(out, params.wants_value.then_some(digits.len()));
    for (letter, token) in flags::each(flags) {
        match letter {
            b't' | b'c' => put_flag(out, letter, token, facts, text),
            _ => put_identity_flag(out, letter, token, text),
        }
    }
    out.extend_from_slice(b"\r\n");
    if params.wants_value {
        out.extend_from_slice(digits);
        out.extend_from_slice(b"\r\n");
    }
}

/// Describes an item for people.
fn debug(partition: &mut Partition, request: &Request<'_>, out: &mut Vec<u8>) {
    let Request { key, params, .. } = *request;
    let now = partition.time();
    let Some(found) = partition.peek(key) else { return out.extend_from_slice(b"EN\r\n") };
    out.extend_from_slice(b"ME ");
    put_key(out, &KeyText { key, is_base64: params.is_base64 });
    out.extend_from_slice(b" exp=");
    put_ttl(out, ttl_s(found.item.expiry, now));
    for (name, number) in [(&b" la="[..], u64::from(found.idle_s)), (b" cas=", found.item.cas)] {
        out.extend_from_slice(name);
        put(out, number);
    }
    out.extend_from_slice(if found.was_fetched { b" fetch=yes" } else { b" fetch=no" });
    out.extend_from_slice(b" cls=1 size=");
    put(out, found.bytes);
    out.extend_from_slice(b"\r\n");
}

fn ttl_s(expiry: u32, now: u32) -> Option<u32> {
    (expiry != 0).then(|| expiry.saturating_sub(now))
}

/// Appends the code of a success: with a value, its length.
fn put_head(out: &mut Vec<u8>, value_bytes: Option<usize>) {
    match value_bytes {
        Some(bytes) => {
            out.extend_from_slice(b"VA ");
            put(out, bytes as u64);
        }
        None => out.extend_from_slice(b"HD"),
    }
}

fn put_flags(out: &mut Vec<u8>, flags: &[u8], facts: &Facts, text: &KeyText<'_>) {
    for (letter, token) in flags::each(flags) {
        put_flag(out, letter, token, facts, text);
    }
}

/// Appends a flag with its value; nothing if the flag asks for none.
fn put_flag(out: &mut Vec<u8>, letter: u8, token: &[u8], facts: &Facts, text: &KeyText<'_>) {
    match letter {
        b'c' => put_number(out, letter, facts.cas),
        b'f' => put_number(out, letter, facts.client_flags.into()),
        b'h' => put_number(out, letter, facts.was_fetched.into()),
        b'l' => put_number(out, letter, facts.idle_s.into()),
        b's' => put_number(out, letter, facts.value_bytes as u64),
        b't' => {
            out.extend_from_slice(b" t");
            put_ttl(out, facts.ttl_s);
        }
        _ => put_identity_flag(out, letter, token, text),
    }
}

/// Appends the flags by which a client finds out which request a reply belongs to.
fn put_identity(out: &mut Vec<u8>, flags: &[u8], text: &KeyText<'_>) {
    for (letter, token) in flags::each(flags) {
        put_identity_flag(out, letter, token, text);
    }
}

fn put_identity_flag(out: &mut Vec<u8>, letter: u8, token: &[u8], text: &KeyText<'_>) {
    match letter {
        b'O' => {
            out.extend_from_slice(b" O");
            out.extend_from_slice(token);
        }
        b'k' => {
            out.extend_from_slice(b" k");
            put_key(out, text);
            if text.is_base64 {
                out.extend_from_slice(b" b");
            }
        }
        _ => {}
    }
}

fn put_key(out: &mut Vec<u8>, text: &KeyText<'_>) {
    match text.is_base64 {
        true => out.extend_from_slice(STANDARD.encode(text.key.bytes()).as_bytes()),
        false => out.extend_from_slice(text.key.bytes()),
    }
}

fn put_number(out: &mut Vec<u8>, letter: u8, number: u64) {
    out.extend_from_slice(&[b' ', letter]);
    put(out, number);
}

/// Appends the seconds that an item has left; -1 without an end.
fn put_ttl(out: &mut Vec<u8>, ttl_s: Option<u32>) {
    match ttl_s {
        Some(seconds) => put(out, seconds.into()),
        None => out.extend_from_slice(b"-1"),
    }
}
