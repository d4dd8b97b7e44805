//! Scans: page by page, for ranges of any length.

use std::collections::VecDeque;

use petrel::client::Response;

use super::operation::Operation;
use super::write::check_key;
use super::{KvClient, KvError};
use crate::api::{Consistency, Pair, Pairs, ScanReply, ScanRequest, methods};

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
    next: Option<Vec<u8>>,
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
    pub fn pairs(&self) -> impl Iterator<Item = Pair<'_>> {
        pairs(&self.reply).into_iter().flat_map(|pairs| pairs.iter())
    }

    /// The number of pairs.
    pub fn len(&self) -> usize {
        pairs(&self.reply).map_or(0, |pairs| pairs.len())
    }

    /// Returns true if the page is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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
            self.ready.extend(page.pairs().map(OwnedPair::from));
        }
        Ok(self.ready.pop_front())
    }

    /// Returns the next pairs; none at the end. The page of an empty range is empty.
    ///
    /// # Errors
    /// As [`Scan::next`].
    pub async fn next_page(&mut self) -> Result<Option<Page>, KvError> {
        let Some(from) = self.from.clone().filter(|_| self.limit > 0) else { return Ok(None) };
        let request = ScanRequest {
            consistency: self.consistency,
            from: &from,
            until: self.until.as_deref(),
            pairs_max: u64::from(self.page_pairs).min(self.limit) as u32,
            bytes_max: PAGE_BYTES,
        };
        let page = self.client.page(&request).await?;
        self.limit -= page.len() as u64;
        self.from.clone_from(&page.next);
        Ok(Some(page))
    }
}

impl KvClient {
    async fn page(&self, request: &ScanRequest<'_>) -> Result<Page, KvError> {
        let bounds = [Some(request.from), request.until].into_iter().flatten();
        bounds.filter(|bound| !bound.is_empty()).try_for_each(check_key)?;
        let mut operation = Operation::read(self, request.consistency, request.from);
        let reply = operation.ask(methods::SCAN, |out| request.encode(out)).await?;
        match ScanReply::decode(&reply) {
            // A page with more pairs than requested, or without progress, is malformed.
            Ok(ScanReply::Pairs { pairs, next }) if makes_progress(request, &pairs, next) => {
                let next = next.map(<[u8]>::to_vec);
                Ok(Page { reply, next })
            }
            Ok(ScanReply::Pairs { .. }) => {
                let error = crate::api::DecodeError::OutOfRange("next key of the scan");
                Err(operation.not_understood(&error))
            }
            Ok(ScanReply::Refused(refusal)) => Err(operation.refused(refusal)),
            Err(error) => Err(operation.not_understood(&error)),
        }
    }
}

/// Returns true if a page has at most the requested pairs, and a scan that continues from it makes progress.
fn makes_progress(request: &ScanRequest<'_>, pairs: &Pairs<'_>, next: Option<&[u8]>) -> bool {
    pairs.len() <= request.pairs_max as usize
        && next.is_none_or(|next| !pairs.is_empty() && next > request.from)
}

impl From<Pair<'_>> for OwnedPair {
    fn from(pair: Pair<'_>) -> Self {
        Self { key: pair.key.to_vec(), revision: pair.revision, value: pair.value.to_vec() }
    }
}

fn pairs(reply: &[u8]) -> Option<Pairs<'_>> {
    match ScanReply::decode(reply) {
        Ok(ScanReply::Pairs { pairs, .. }) => Some(pairs),
        _ => None,
    }
}
