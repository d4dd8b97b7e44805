//! Scans: page by page, so that a range may have any length.

use std::collections::VecDeque;

use petrel::client::Response;

use super::operation::Operation;
use super::write::check_key;
use super::{KvClient, KvError};
use crate::api::{Consistency, Pair, Pairs, ScanReply, ScanRequest, methods};

/// Pairs of a page by default, and their bytes: enough that a call for each page is a small part of the cost,
/// and little enough that no page holds up the small calls behind it.
const PAGE_PAIRS: u32 = 1024;
const PAGE_BYTES: u32 = 256 << 10;

/// A scan of a range, from page to page or from pair to pair.
///
/// Each page is as fresh as was asked for when it is read, and all of it is of one moment; what changes
/// between two pages is seen or not. No key comes twice, and those that nobody changes meanwhile all come.
#[derive(Debug)]
pub struct Scan {
    client: KvClient,
    consistency: Consistency,
    /// The next key; none at the end.
    from: Option<Vec<u8>>,
    until: Option<Vec<u8>>,
    page_pairs: u32,
    /// How many more pairs are wanted.
    limit: u64,
    /// Pairs of the last page that were not given out.
    ready: VecDeque<OwnedPair>,
}

/// Pairs of a range, in the buffer in which they came.
#[derive(Debug)]
pub struct Page {
    reply: Response,
    next: Option<Vec<u8>>,
}

/// A key and what is stored under it, of one's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedPair {
    /// The key.
    pub key: Vec<u8>,
    /// The log index of the write that set it.
    pub revision: u64,
    /// Its value.
    pub value: Vec<u8>,
}

impl KvClient {
    /// Reads the keys from `from` on, in order: those before `until`, or all that follow. An empty `from` is the
    /// beginning. Nothing is read before [`Scan::next`] or [`Scan::next_page`].
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

    /// How many there are.
    pub fn len(&self) -> usize {
        pairs(&self.reply).map_or(0, |pairs| pairs.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Scan {
    /// How fresh each page must be; [`Consistency::Linearizable`] by default.
    #[must_use]
    pub fn consistency(self, consistency: Consistency) -> Self {
        Self { consistency, ..self }
    }

    /// No more pairs than these.
    #[must_use]
    pub fn limit(self, pairs: u64) -> Self {
        Self { limit: pairs, ..self }
    }

    /// Pairs of a page at most, 1024 by default; at least 1. The server has limits of its own.
    #[must_use]
    pub fn page_pairs(self, pairs: u32) -> Self {
        Self { page_pairs: pairs.max(1), ..self }
    }

    /// The next pair.
    ///
    /// # Errors
    /// [`KvError`]; the scan stands where it stood, and may go on.
    pub async fn next(&mut self) -> Result<Option<OwnedPair>, KvError> {
        while self.ready.is_empty() {
            let Some(page) = self.next_page().await? else { return Ok(None) };
            self.ready.extend(page.pairs().map(OwnedPair::from));
        }
        Ok(self.ready.pop_front())
    }

    /// The next pairs; none at the end. A page may be empty, if the range is.
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
            // A page of more than was asked for, or that does not go on, is none.
            Ok(ScanReply::Pairs { pairs, next }) if goes_on(request, &pairs, next) => {
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

/// Whether a page has as many pairs as may be, and a scan that goes on from it comes to an end.
fn goes_on(request: &ScanRequest<'_>, pairs: &Pairs<'_>, next: Option<&[u8]>) -> bool {
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
