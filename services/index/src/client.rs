//! A client, for any thread and any executor.

use std::ops::Bound;

use petrel::client::{Pending, Targets};
use petrel_planted::planted;

use crate::bytes;
use crate::error::ClientError;
use crate::limits::SCAN_PAIRS_MAX;
use crate::wire::{
    BytesPair, DeleteBytes, DeleteWord, GetBytes, GetWord, Method, Page, PutBytes, PutWord,
    ScanBytes, ScanRange, ScanWords, Status, Sum, SumWords,
};

/// Calls the service, from any thread and in any executor. Clones share a client, which outlives sessions and servers.
///
/// A method returns a [`Call`], to be awaited, or [waited for](Pending::wait). Any [`petrel::Client`] can call the
/// service, with its own time limits, transports and threads: `Client::from(petrel::Client::builder()…)`.
#[derive(Clone, Debug)]
pub struct Client(petrel::Client);

impl From<petrel::Client> for Client {
    fn from(client: petrel::Client) -> Self {
        Self(client)
    }
}

impl Client {
    /// Connects, with the defaults of [`petrel::Client::connect`].
    ///
    /// # Errors
    /// UNAVAILABLE if no server can be reached.
    pub async fn connect(servers: impl Into<Targets>) -> Result<Self, petrel::Error> {
        petrel::Client::connect(servers).await.map(Self)
    }

    /// Connects like [`Client::connect`], and parks the thread meanwhile.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_wait(servers: impl Into<Targets>) -> Result<Self, petrel::Error> {
        petrel::Client::connect_wait(servers).map(Self)
    }

    /// Calls a method.
    pub fn call<M: Method + 'static>(&self, request: &M::Request<'_>) -> Call<M::Response> {
        let call = self.0.call(M::NUMBER, M::encode_request(request));
        let read = M::decode_response;
        Call::new(async move { Ok(read(&call.await?)?) })
    }

    /// Returns a word's value.
    pub fn get_word(&self, key: u64) -> Call<Option<u64>> {
        self.call::<GetWord>(&key)
    }

    /// Sets a word's value. Returns the former value.
    pub fn put_word(&self, key: u64, value: u64) -> Call<Option<u64>> {
        self.call::<PutWord>(&(key, value))
    }

    /// Removes a word. Returns its value.
    pub fn delete_word(&self, key: u64) -> Call<Option<u64>> {
        self.call::<DeleteWord>(&key)
    }

    /// The sum of the values of up to `count` words after a key, in one call.
    pub fn sum_words(&self, after: u64, count: u32) -> Call<Sum> {
        self.call::<SumWords>(&(after, count))
    }

    /// Up to `limit` words, in ascending order, with the necessary number of calls.
    pub fn scan_words(&self, mut from: Bound<u64>, limit: usize) -> Call<Vec<(u64, u64)>> {
        let client = self.clone();
        Call::new(async move {
            let mut all = Vec::new();
            loop {
                let wanted = page_limit(limit - all.len());
                let page = client.call::<ScanWords>(&ScanRange { from, limit: wanted }).await?;
                let is_last = is_last(&page, wanted);
                all.extend(page.pairs);
                match all.last() {
                    Some((key, _)) if !is_last && all.len() < limit => {
                        let repeats = planted("index_page_repeats_a_key");
                        from = if repeats { Bound::Included(*key) } else { Bound::Excluded(*key) };
                    }
                    _ => return Ok(all),
                }
            }
        })
    }

    /// Returns the value of a key in the table of bytes.
    pub fn get_bytes(&self, key: &[u8]) -> Call<Option<Vec<u8>>> {
        self.call::<GetBytes>(&key)
    }

    /// Sets a value. Returns true if the key had a value.
    pub fn put_bytes(&self, key: &[u8], value: &[u8]) -> Call<bool> {
        match bytes::check(key, value) {
            Ok(()) => self.call::<PutBytes>(&(key, value)),
            Err(error) => Call::new(async move { Err(error.into()) }),
        }
    }

    /// Removes a key. Returns true if the key existed.
    pub fn delete_bytes(&self, key: &[u8]) -> Call<bool> {
        self.call::<DeleteBytes>(&key)
    }

    /// Up to `limit` pairs, in ascending order, with the necessary number of calls.
    pub fn scan_bytes(&self, from: Bound<&[u8]>, limit: usize) -> Call<Vec<BytesPair>> {
        let (client, first) = (self.clone(), from.map(<[u8]>::to_vec));
        Call::new(async move {
            let mut all: Vec<BytesPair> = Vec::new();
            loop {
                let first = first.as_ref().map(Vec::as_slice);
                let from = all.last().map_or(first, |(key, _)| Bound::Excluded(&key[..]));
                let wanted = page_limit(limit - all.len());
                let page = client.call::<ScanBytes>(&ScanRange { from, limit: wanted }).await?;
                let is_last = is_last(&page, wanted) || page.pairs.is_empty();
                all.extend(page.pairs);
                if is_last || all.len() >= limit {
                    return Ok(all);
                }
            }
        })
    }

    /// The server's counters.
    pub fn status(&self) -> Call<Vec<(String, u64)>> {
        self.call::<Status>(&())
    }
}

fn page_limit(left: usize) -> u32 {
    left.min(SCAN_PAIRS_MAX as usize) as u32
}

/// Returns true if no pair follows the page.
fn is_last<P>(page: &Page<P>, wanted: u32) -> bool {
    !page.is_cut && page.pairs.len() < wanted as usize
}

/// A call, or the consecutive calls of a scan. Awaiting or [waiting](Pending::wait) begins the call; an answer or a
/// [`ClientError`] ends it.
pub type Call<T> = Pending<T, ClientError>;
