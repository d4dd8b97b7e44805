//! Runs meta commands, and writes the replies.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::clock::Clock;
use super::execute::store_error;
use super::flags;
use super::operation::{MetaCommand, MetaParams, Operation};
use super::replies::NOT_A_NUMBER;
use crate::key::Key;
use crate::numbers::put;
use crate::partition::{Arithmetic, Counted, Fetch, Fetched, Partition, Removed, Store, Stored};

/// A meta command with its key and flags.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) clock: &'a Clock,
    pub(super) key: Key<'a>,
    pub(super) params: &'a MetaParams,
    pub(super) operation: &'a Operation<'a>,
}

/// A reply that is being written.
struct Reply<'a> {
    request: &'a Request<'a>,
    out: &'a mut Vec<u8>,
}

/// The number behind a flag; `None` is the time of an item without an end.
type Fact = Option<u64>;

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
    run(partition, Reply { request, out });
}

fn get(partition: &mut Partition, mut reply: Reply<'_>) {
    let Request { clock, key, params, .. } = *reply.request;
    let now = partition.time();
    let fetch = Fetch {
        touch: params.exptime.map(|exptime| clock.expiry(exptime, now)),
        vivify: params.vivify.map(|exptime| clock.expiry(exptime, now)),
        recache_s: params.recache_s,
        is_silent: params.is_silent,
    };
    match partition.fetch(key, &fetch) {
        Err(error) => reply.put(store_error(error)),
        Ok(None) if params.is_quiet => {}
        Ok(None) => reply.code(b"EN"),
        Ok(Some(found)) => reply.found(&found, now),
    }
}

fn set(partition: &mut Partition, mut reply: Reply<'_>) {
    let Request { clock, key, params, operation } = *reply.request;
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
        Err(error) => return reply.put(store_error(error)),
    };
    reply.put(code);
    reply.flags(|letter| (letter == b'c').then_some(Some(cas)));
    reply.put(b"\r\n");
}

fn delete(partition: &mut Partition, mut reply: Reply<'_>) {
    let Request { clock, key, params, .. } = *reply.request;
    let expiry = params.exptime.map(|exptime| clock.expiry(exptime, partition.time()));
    let removed = match params.invalidates {
        true => partition.invalidate(key, params.compare, expiry),
        false => partition.delete(key, params.compare),
    };
    match removed {
        Removed::Done if params.is_quiet => {}
        Removed::Done => reply.code(b"HD"),
        Removed::NotFound => reply.code(b"NF"),
        Removed::Exists => reply.code(b"EX"),
    }
}

fn count(partition: &mut Partition, mut reply: Reply<'_>) {
    let Request { clock, key, params, .. } = *reply.request;
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
    match partition.count(&arithmetic) {
        Ok(Counted::Number { .. }) if params.is_quiet => {}
        Ok(Counted::Number { number, cas, expiry }) => {
            let mut digits = itoa::Buffer::new();
            let digits = digits.format(number).as_bytes();
            reply.head(digits);
            reply.flags(|letter| match letter {
                b'c' => Some(Some(cas)),
                b't' => Some(ttl_s(expiry, now)),
                _ => None,
            });
            reply.end(digits);
        }
        Ok(Counted::NotFound) => reply.code(b"NF"),
        Ok(Counted::Exists) => reply.code(b"EX"),
        Ok(Counted::NotANumber) => reply.put(NOT_A_NUMBER),
        Err(error) => reply.put(store_error(error)),
    }
}

/// Describes an item for people.
fn debug(partition: &mut Partition, mut reply: Reply<'_>) {
    let now = partition.time();
    let Some(found) = partition.peek(reply.request.key) else { return reply.put(b"EN\r\n") };
    reply.put(b"ME ");
    reply.key();
    for (name, number) in [
        (&b" exp="[..], ttl_s(found.item.expiry, now)),
        (b" la=", Some(found.idle_s.into())),
        (b" cas=", Some(found.item.cas)),
    ] {
        reply.fact(name, number);
    }
    reply.put(if found.was_fetched { b" fetch=yes" } else { b" fetch=no" });
    reply.fact(b" cls=1 size=", Some(found.bytes));
    reply.put(b"\r\n");
}

fn ttl_s(expiry: u32, now: u32) -> Fact {
    (expiry != 0).then(|| expiry.saturating_sub(now).into())
}

impl Reply<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    fn fact(&mut self, name: &[u8], number: Fact) {
        self.put(name);
        match number {
            Some(number) => put(self.out, number),
            None => self.put(b"-1"),
        }
    }

    /// Appends a code, with the flags by which a client finds out which request the reply belongs to.
    fn code(&mut self, code: &[u8]) {
        self.put(code);
        self.flags(|_| None);
        self.put(b"\r\n");
    }

    /// Appends the code of a success: with a value, its length.
    fn head(&mut self, value: &[u8]) {
        match self.request.params.wants_value {
            true => self.fact(b"VA ", Some(value.len() as u64)),
            false => self.put(b"HD"),
        }
    }

    fn end(&mut self, value: &[u8]) {
        self.put(b"\r\n");
        if self.request.params.wants_value {
            self.put(value);
            self.put(b"\r\n");
        }
    }

    /// Appends the request's flags that ask for an answer, in their order: flags with a fact, and the client's own.
    fn flags(&mut self, fact: impl Fn(u8) -> Option<Fact>) {
        for (letter, token) in flags::each(self.request.operation.flags) {
            if let Some(number) = fact(letter) {
                self.fact(&[b' ', letter], number);
            } else if letter == b'O' {
                self.put(b" O");
                self.put(token);
            } else if letter == b'k' {
                self.put(b" k");
                self.key();
                if self.request.params.is_base64 {
                    self.put(b" b");
                }
            }
        }
    }

    /// Appends the key, as the client knows it.
    fn key(&mut self) {
        let key = self.request.key.bytes();
        match self.request.params.is_base64 {
            true => self.put(STANDARD.encode(key).as_bytes()),
            false => self.put(key),
        }
    }

    /// Appends a found item: the flags of the request, and the flags that choose the client to refresh the value.
    fn found(&mut self, found: &Fetched<'_>, now: u32) {
        let item = &found.item;
        self.head(item.value);
        self.flags(|letter| match letter {
            b'c' => Some(Some(item.cas)),
            b'f' => Some(Some(item.flags.into())),
            b'h' => Some(Some(found.was_fetched.into())),
            b'l' => Some(Some(found.idle_s.into())),
            b's' => Some(Some(item.value.len() as u64)),
            b't' => Some(ttl_s(item.expiry, now)),
            _ => None,
        });
        for (is_set, letter) in
            [(found.other_has_won, b'Z'), (found.is_stale, b'X'), (found.has_won, b'W')]
        {
            if is_set {
                self.put(&[b' ', letter]);
            }
        }
        self.end(item.value);
    }
}
