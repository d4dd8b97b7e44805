//! Runs operations on a partition, and writes the replies.

use super::clock::Clock;
use super::execute_meta::{Request, execute_meta};
use super::operation::{Action, Operation, Refusal};
use super::replies::{NO_MEMORY, NOT_A_NUMBER, TOO_LARGE};
use crate::error::StoreError;
use crate::key::Key;
use crate::numbers::put;
use crate::partition::{Arithmetic, Counted, Item, Partition, Removed, Store, Stored};

/// Runs an operation on the partition that owns its key, and appends the reply to `out`.
pub fn execute(
    partition: &mut Partition,
    clock: &Clock,
    key: Key<'_>,
    operation: &Operation<'_>,
    out: &mut Vec<u8>,
) {
    let now = partition.time();
    let (reply, is_quiet): (&[u8], bool) = match operation.action {
        Action::Get { with_cas, touch } => {
            let item = match touch {
                Some(exptime) => partition.get_and_touch(key, clock.expiry(exptime, now)),
                None => partition.get(key),
            };
            if let Some(item) = item {
                put_value(out, key, &item, with_cas);
            }
            return;
        }
        Action::Store { verb, client_flags: flags, exptime, compare, is_quiet } => {
            let expiry = clock.expiry(exptime, now);
            let value = operation.value;
            let request = Store { key, value, flags, expiry, verb, compare, allows_stale: false };
            let reply: &[u8] = match partition.store(&request) {
                Ok(Stored::Done { .. }) => b"STORED\r\n",
                Ok(Stored::Refused) => b"NOT_STORED\r\n",
                Ok(Stored::Exists) => b"EXISTS\r\n",
                Ok(Stored::NotFound) => b"NOT_FOUND\r\n",
                Err(error) => store_error(error),
            };
            (reply, is_quiet)
        }
        Action::Refused { reason, removes, is_quiet } => {
            partition.refuse(key, reason == Refusal::TooLarge, removes);
            (if reason == Refusal::TooLarge { TOO_LARGE } else { NO_MEMORY }, is_quiet)
        }
        Action::Delete { is_quiet } => {
            let is_done = partition.delete(key, None) == Removed::Done;
            (if is_done { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" }, is_quiet)
        }
        Action::Touch { exptime, is_quiet } => {
            let is_done = partition.touch(key, clock.expiry(exptime, now));
            (if is_done { b"TOUCHED\r\n" } else { b"NOT_FOUND\r\n" }, is_quiet)
        }
        Action::Count { is_increment, delta, is_quiet } => {
            let reply = count(partition, key, is_increment, delta);
            if let (Ok(number), false) = (reply, is_quiet) {
                put(out, number);
                out.extend_from_slice(b"\r\n");
            }
            (reply.err().unwrap_or_default(), is_quiet)
        }
        Action::Meta(command, params) => {
            let request = Request { clock, key, params: &params, operation };
            return execute_meta(partition, command, &request, out);
        }
    };
    if !is_quiet {
        out.extend_from_slice(reply);
    }
}

/// Appends an item as get returns it.
fn put_value(out: &mut Vec<u8>, key: Key<'_>, item: &Item<'_>, with_cas: bool) {
    out.reserve(key.bytes().len() + item.value.len() + 64);
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key.bytes());
    out.push(b' ');
    put(out, item.flags.into());
    out.push(b' ');
    put(out, item.value.len() as u64);
    if with_cas {
        out.push(b' ');
        put(out, item.cas);
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(item.value);
    out.extend_from_slice(b"\r\n");
}

/// Changes a number, and returns it or the reply.
fn count(
    partition: &mut Partition,
    key: Key<'_>,
    is_increment: bool,
    delta: u64,
) -> Result<u64, &'static [u8]> {
    let request =
        Arithmetic { key, delta, is_increment, compare: None, touch: None, initial: None };
    match partition.count(&request) {
        Ok(Counted::Number { number, .. }) => Ok(number),
        Ok(Counted::NotANumber) => Err(NOT_A_NUMBER),
        Ok(Counted::NotFound | Counted::Exists) => Err(b"NOT_FOUND\r\n"),
        Err(error) => Err(store_error(error)),
    }
}

pub(super) fn store_error(error: StoreError) -> &'static [u8] {
    match error {
        StoreError::TooLarge { .. } => TOO_LARGE,
        StoreError::Full => NO_MEMORY,
    }
}
