//! A client, for any thread and any executor.

use std::ops::Bound;

use petrel::Error;
use petrel::client::{Pending, Targets};
use petrel_planted::planted;
use zerocopy::big_endian::U64 as Key;

use crate::limits::SCAN_PAIRS_MAX;
use crate::service::{Blob, Page, PairsClient, ScanRange, Sum, SumRange, Word, WordsClient};

/// Calls the service, from any thread and in any executor. Clones share a client, which outlives sessions and servers.
///
/// A method returns a [`Call`], to be awaited, or [waited for](Pending::wait). Any [`petrel::Client`] can call the
/// service, with its own time limits, transports and threads: `Client::from(petrel::Client::builder()…)`.
#[derive(Clone, Debug)]
pub struct Client {
    words: WordsClient,
    pairs: PairsClient,
}

impl From<petrel::Client> for Client {
    fn from(client: petrel::Client) -> Self {
        Self { words: WordsClient::new(client.clone()), pairs: PairsClient::new(client) }
    }
}

impl Client {
    /// Connects, with the defaults of [`petrel::Client::connect`].
    ///
    /// # Errors
    /// UNAVAILABLE if no server can be reached.
    pub async fn connect(servers: impl Into<Targets>) -> Result<Self, Error> {
        petrel::Client::connect(servers).await.map(Self::from)
    }

    /// Connects like [`Client::connect`], and parks the thread meanwhile.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_wait(servers: impl Into<Targets>) -> Result<Self, Error> {
        petrel::Client::connect_wait(servers).map(Self::from)
    }

    /// Returns a word's value.
    pub fn get_word(&self, key: u64) -> Call<Option<u64>> {
        of(self.words.get(Key::new(key)))
    }

    /// Sets a word's value. Returns the former value.
    pub fn put_word(&self, key: u64, value: u64) -> Call<Option<u64>> {
        of(self.words.put(Word { key: key.into(), value: value.into() }))
    }

    /// Removes a word. Returns its value.
    pub fn delete_word(&self, key: u64) -> Call<Option<u64>> {
        of(self.words.delete(Key::new(key)))
    }

    /// The sum of the values of up to `count` words after a key, in one call.
    pub fn sum_words(&self, after: u64, count: u32) -> Call<Sum> {
        of(self.words.sum(SumRange { after: after.into(), count: count.into() }))
    }

    /// Up to `limit` words, in ascending order, with the necessary number of calls.
    pub fn scan_words(&self, from: Bound<u64>, limit: usize) -> Call<Vec<(u64, u64)>> {
        let client = self.pairs.clone();
        pages(from, limit, move |range| client.scan_words(range))
    }

    /// Returns the value of a key in the table of bytes.
    pub fn get_bytes(&self, key: &[u8]) -> Call<Option<Blob>> {
        of(self.pairs.get(Blob::from(key)))
    }

    /// Sets a value. Returns true if the key had a value.
    pub fn put_bytes(&self, key: &[u8], value: &[u8]) -> Call<bool> {
        of(self.pairs.put((Blob::from(key), Blob::from(value))))
    }

    /// Removes a key. Returns true if the key existed.
    pub fn delete_bytes(&self, key: &[u8]) -> Call<bool> {
        of(self.pairs.delete(Blob::from(key)))
    }

    /// Up to `limit` pairs, in ascending order, with the necessary number of calls.
    pub fn scan_bytes(&self, from: Bound<&[u8]>, limit: usize) -> Call<Vec<(Blob, Blob)>> {
        let client = self.pairs.clone();
        pages(from.map(Blob::from), limit, move |range| client.scan(range))
    }

    /// The server's counters.
    pub fn status(&self) -> Call<Vec<(String, u64)>> {
        of(self.pairs.status(()))
    }
}

/// A call of the client, or the calls of a scan. Awaiting or [waiting](Pending::wait) begins it.
pub type Call<T> = Pending<T, Error>;

fn of<A: Into<B> + 'static, B>(call: petrel::client::Call<A>) -> Call<B> {
    Pending::new(async move { Ok(call.await?.into()) })
}

/// Gets pages until there are `limit` pairs, or no further ones.
fn pages<K, V>(
    mut from: Bound<K>,
    limit: usize,
    page: impl Fn(ScanRange<K>) -> petrel::client::Call<Page<K, V>> + Send + 'static,
) -> Call<Vec<(K, V)>>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
{
    Pending::new(async move {
        let mut all: Vec<(K, V)> = Vec::new();
        loop {
            let wanted = (limit - all.len()).min(SCAN_PAIRS_MAX as usize) as u32;
            let Page { pairs, is_cut } = page(ScanRange { from, limit: wanted }).await?;
            let is_last = pairs.is_empty() || !is_cut && pairs.len() < wanted as usize;
            all.extend(pairs);
            match all.last() {
                Some((key, _)) if !is_last && all.len() < limit => {
                    let (key, repeats) = (key.clone(), planted("index_page_repeats_a_key"));
                    from = if repeats { Bound::Included(key) } else { Bound::Excluded(key) };
                }
                _ => return Ok(all),
            }
        }
    })
}
