//! The handlers of an endpoint with a partition: the methods of [`wire`].

use std::num::NonZeroU16;

use petrel::endpoint::{Batch, Handled};
use petrel::service::{Decode, Encode, Malformed, Postcard};
use petrel::{Context, Endpoint, Error, Request, Status};

use super::wire::{
    self, CountMessage, DeleteMessage, Hello, StoreMessage, TouchMessage, decode, encode,
    got_bytes, put_got,
};
use crate::error::StoreError;
use crate::key::{KeyRange, RangeError};
use crate::net::report::Snapshot;
use crate::partition::{Arithmetic, Item, Partition, Store, Stored};

/// How an endpoint looks items up.
///
/// A look-up reads a line of the index, and then the item. With many items, both accesses miss the processor's caches.
/// The requests of a receive burst can wait for them together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lookups {
    /// One by one.
    Plain,
    /// One by one. The endpoint prefetches the lines of the index and of the items for all requests of a burst.
    #[default]
    Prefetched,
    /// Together, for the requests of a burst: the lines of the index, and then the items.
    Batched,
}

impl From<RangeError> for Error {
    fn from(error: RangeError) -> Self {
        let status = match error {
            RangeError::Key(_) => Status::InvalidArgument,
            RangeError::Other(_) => Status::FailedPrecondition,
        };
        Self::new(status, error.to_string())
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        let status = match error {
            StoreError::TooLarge { .. } => Status::InvalidArgument,
            StoreError::Full => Status::ResourceExhausted,
        };
        Self::new(status, error.to_string())
    }
}

/// Serves a partition on an endpoint of the application, for [`CacheClient`](crate::CacheClient). The endpoint's state has
/// the partition, whose time the application sets.
///
/// The endpoint must have the number of the range's partition.
pub fn serve_partition<S: 'static>(
    endpoint: &mut Endpoint<S>,
    range: &KeyRange,
    lookups: Lookups,
    partition: impl Fn(&mut S) -> &mut Partition + Copy + 'static,
) {
    let mode = partition(endpoint.state_mut()).mode();
    let partitions = NonZeroU16::new(range.partitions()).expect("a range is of a partition");
    let hello = encode(&Hello { mode, partitions, seed: range.hasher().seed() });
    endpoint.on(wire::HELLO, move |_, cx, request| request.reply(cx, &hello));
    serve_lookups(endpoint, range, lookups, partition);
    let own = range.clone();
    endpoint.on(wire::STORE, move |state, cx, request| {
        answer(cx, request, |message| store(partition(state), &own, message))
    });
    serve(endpoint, wire::DELETE, range, partition, |partition, range, message: DeleteMessage| {
        Ok(partition.delete(range.key(&message.key)?, message.compare))
    });
    serve(endpoint, wire::TOUCH, range, partition, |partition, range, message: TouchMessage| {
        let expiry = expiry(partition, message.ttl_s);
        Ok(partition.touch(range.key(&message.key)?, expiry))
    });
    serve(endpoint, wire::COUNT, range, partition, |partition, range, message| {
        let CountMessage { is_increment, delta, initial, ttl_s, key } = message;
        let (key, expiry) = (range.key(&key)?, expiry(partition, ttl_s));
        let initial = initial.map(|number| (number, expiry));
        let request = Arithmetic { key, delta, is_increment, compare: None, touch: None, initial };
        Ok(partition.count(&request)?)
    });
    serve(endpoint, wire::FLUSH, range, partition, |partition, _, after_s: u32| {
        let second = expiry(partition, after_s);
        partition.flush_at(second);
        Ok(())
    });
    serve(endpoint, wire::STATS, range, partition, |partition, _, ()| {
        let counters = Snapshot::of(partition);
        Ok(counters.named().map(|(name, value)| (name.to_owned(), value)).collect::<Vec<_>>())
    });
}

/// Stores a value, which is copied out of the request.
fn store(partition: &mut Partition, range: &KeyRange, message: &[u8]) -> Result<Stored, Error> {
    let message = StoreMessage::decode(message).map_err(malformed)?;
    let StoreMessage { verb, compare, flags, ttl_s, value, .. } = message;
    let (key, expiry) = (range.key(message.key)?, expiry(partition, ttl_s));
    let request = Store { key, value, flags, expiry, verb, compare, allows_stale: false };
    Ok(partition.store(&request)?)
}

fn malformed(why: Malformed) -> Error {
    Error::new(Status::InvalidArgument, format!("a malformed message: {why}"))
}

/// The second of the clock at which an item ends, from the item's seconds to live.
fn expiry(partition: &Partition, ttl_s: u32) -> u32 {
    if ttl_s == 0 { 0 } else { partition.time().saturating_add(ttl_s) }
}

/// Registers a method whose messages are in the format of postcard.
fn serve<S: 'static, Q: 'static, R: 'static>(
    endpoint: &mut Endpoint<S>,
    method: u16,
    range: &KeyRange,
    partition: impl Fn(&mut S) -> &mut Partition + 'static,
    run: fn(&mut Partition, &KeyRange, Q) -> Result<R, Error>,
) where
    Postcard: Decode<Q> + Encode<R>,
{
    let range = range.clone();
    endpoint.on(method, move |state, cx, request| {
        answer(cx, request, |message| {
            run(partition(state), &range, decode(message).map_err(malformed)?)
        })
    });
}

fn answer<S: 'static, R>(
    cx: &mut Context<'_, S>,
    request: Request<'_>,
    run: impl FnOnce(&[u8]) -> Result<R, Error>,
) -> Handled
where
    Postcard: Encode<R>,
{
    match run(request.data()) {
        Ok(reply) => {
            let len = Postcard::len(&reply);
            request.reply_with(cx, len, |_, out| {
                Postcard::encode(&reply, out);
                len
            })
        }
        Err(error) => request.fail(cx, error.status, &error.message),
    }
}

/// Sets the handler of GET, whose request is the key.
fn serve_lookups<S: 'static>(
    endpoint: &mut Endpoint<S>,
    range: &KeyRange,
    lookups: Lookups,
    partition: impl Fn(&mut S) -> &mut Partition + Copy + 'static,
) {
    let own = range.clone();
    match lookups {
        Lookups::Plain | Lookups::Prefetched => {
            endpoint
                .on(wire::GET, move |state, cx, request| get(partition(state), &own, cx, request));
        }
        Lookups::Batched => {
            endpoint.on_batch(wire::GET, move |state, cx, batch| {
                get_batch(partition(state), &own, cx, batch);
            });
        }
    }
    if lookups == Lookups::Prefetched {
        let (hasher, locator) = (range.hasher().clone(), partition(endpoint.state_mut()).locator());
        let locate = move |message: &[u8]| {
            let hash = hasher.hash(message);
            (locator.address(hash), hash)
        };
        let fetch_item = move |state: &mut S, hash| partition(state).prefetch_item(hash);
        endpoint.prefetch_then(wire::GET, locate, fetch_item);
    }
}

/// Looks an item up, and copies the value directly into the reply.
#[inline]
fn get<S: 'static>(
    partition: &mut Partition,
    range: &KeyRange,
    cx: &mut Context<'_, S>,
    request: Request<'_>,
) -> Handled {
    let key = match range.key(request.data()) {
        Ok(key) => key,
        Err(error) => {
            let error = Error::from(error);
            return request.fail(cx, error.status, &error.message);
        }
    };
    let item = partition.get(key);
    reply(cx, request, item)
}

#[inline]
fn reply<S: 'static>(
    cx: &mut Context<'_, S>,
    request: Request<'_>,
    item: Option<Item<'_>>,
) -> Handled {
    let Some(item) = item else { return request.reply(cx, &[]) };
    request.reply_with(cx, got_bytes(&item), |_, out| {
        put_got(&item, out);
        out.len()
    })
}

/// Looks the items of all requests up together. A lone request gains nothing by that.
fn get_batch<S: 'static>(
    partition: &mut Partition,
    range: &KeyRange,
    cx: &mut Context<'_, S>,
    batch: &Batch<'_>,
) {
    if batch.len() > 1 {
        let keys = batch.messages().enumerate();
        let keys = keys.filter_map(|(index, message)| Some((index, range.key(message).ok()?)));
        partition.get_batch(keys, |index, item| {
            batch.answer(cx, index, |cx, request| reply(cx, request, item));
        });
    }
    // A lone request, and refused requests.
    batch.answer_each(cx, |cx, request| get(partition, range, cx, request));
}
