//! Scans: page by page, for ranges of any length.

use std::collections::VecDeque;

use petrel::client::Response;

use super::error::not_understood;
use super::{KvClient, KvError};
use crate::api::{Consistency, Pair, Pairs, ScanReply, ScanRequest, methods};
use crate::wire::check_bound;

/// Default limits of a page. A page is large enough to make the cost of its call small, and small enough not to delay
/// other calls for long.
const PAGE_PAIRS: u32 = 1024;
const PAGE_BYTES: u32 = 256 << 10;

/// A scan of a range, by pages or by pairs.
///
/// A page is read with the requested consistency, and shows a single moment. The scan may or may not see changes
/// between two pages. No key appears twice, and all unchanged keys appear.
#[derive(Debug)]
pub struct Scan {
    client: KvClient,
    consistency: Consistency,
    /// The next key; none at the end.
    from: Option<Vec<u8>>,
    until: Option<Vec<u8>>,
    page_pairs: u32,
    /// The remaining number of pairs.
    limit: u64,
    /// Remaining pairs of the last page.
    ready: VecDeque<OwnedPair>,
}

/// Pairs of a range, in the receive buffer.
#[derive(Debug)]
pub struct Page {
    reply: Response,
}

/// An owned pair: key, revision and value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedPair {
    /// The key.
    pub key: Vec<u8>,
    /// The log index of the write that last set the key.
    pub revision: u64,
    /// Its value.
    pub value: Vec<u8>,
}

impl KvClient {
    /// Scans the keys from `from` on, in order: up to `until` (excluded), or to the end. An empty `from` is the
    /// beginning. Reads nothing before [`Scan::next`] or [`Scan::next_page`].
    pub fn scan(&self, from: &[u8], until: Option<&[u8]>) -> Scan {
        Scan {
            client: self.clone(),
            consistency: Consistency::Linearizable,
            from: Some(from.to_vec()),
            until: until.map(<[u8]>::to_vec),
            page_pairs: PAGE_PAIRS,
            limit: u64::MAX,
            ready: VecDeque::new(),
        }
    }
}

impl Page {
    /// The pairs, in the order of their keys.
    pub fn pairs(&self) -> Pairs<'_> {
        match ScanReply::decode(&self.reply) {
            Ok(ScanReply::Pairs { pairs, .. }) => pairs,
            _ => unreachable!("a page was decoded when it arrived"),
        }
    }
}

impl Scan {
    /// Sets the consistency of each page; [`Consistency::Linearizable`] by default.
    #[must_use]
    pub fn consistency(self, consistency: Consistency) -> Self {
        Self { consistency, ..self }
    }

    /// Limits the number of pairs.
    #[must_use]
    pub fn limit(self, pairs: u64) -> Self {
        Self { limit: pairs, ..self }
    }

    /// Sets the most pairs of a page, 1024 by default; at least 1. The server has limits of its own.
    #[must_use]
    pub fn page_pairs(self, pairs: u32) -> Self {
        Self { page_pairs: pairs.max(1), ..self }
    }

    /// Returns the next pair.
    ///
    /// # Errors
    /// [`KvError`]; the position of the scan stays the same, and the scan may be continued.
    pub async fn next(&mut self) -> Result<Option<OwnedPair>, KvError> {
        while self.ready.is_empty() {
            let Some(page) = self.next_page().await? else { return Ok(None) };
            self.ready.extend(page.pairs().iter().map(OwnedPair::from));
        }
        Ok(self.ready.pop_front())
    }

    /// Returns the next pairs; none at the end. The page of an empty range is empty.
    ///
    /// # Errors
    /// As [`Scan::next`].
    pub async fn next_page(&mut self) -> Result<Option<Page>, KvError> {
        let Some(from) = self.from.as_deref().filter(|_| self.limit > 0) else { return Ok(None) };
        let (consistency, until) = (self.consistency, self.until.as_deref());
        let pairs_max = u64::from(self.page_pairs).min(self.limit) as u32;
        let request = ScanRequest { consistency, from, until, pairs_max, bytes_max: PAGE_BYTES };
        let bounds = check_bound(from).and(until.map_or(Ok(()), check_bound));
        bounds.map_err(KvError::invalid)?;
        let encode = |out: &mut Vec<u8>| request.encode(out);
        let reply = self.client.read(methods::SCAN, consistency, from, encode).await?;
        let (count, next) = match ScanReply::decode(&reply) {
            Ok(ScanReply::Pairs { pairs, next }) if is_answer(&request, &pairs, next) => {
                (pairs.len(), next.map(<[u8]>::to_vec))
            }
            other => return Err(KvError::of_read(not_understood(other.err()))),
        };
        self.limit -= count as u64;
        self.from = next;
        Ok(Some(Page { reply }))
    }
}

/// Returns true if a page has at most the requested pairs, and a scan that continues from it makes progress.
fn is_answer(request: &ScanRequest<'_>, pairs: &Pairs<'_>, next: Option<&[u8]>) -> bool {
    pairs.len() <= request.pairs_max as usize
        && next.is_none_or(|next| !pairs.is_empty() && next > request.from)
}

impl From<Pair<'_>> for OwnedPair {
    fn from(pair: Pair<'_>) -> Self {
        Self { key: pair.key.to_vec(), revision: pair.revision, value: pair.value.to_vec() }
    }
}
