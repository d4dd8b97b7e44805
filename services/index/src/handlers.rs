//! The handlers of the service.
//!
//! GET, PUT and DELETE run in the event loop, because a lookup takes less time than the handover to a worker. Scans run in workers.

use std::ops::ControlFlow;
use std::sync::Arc;

use petrel::workers::{WorkerRequest, Workers};
use petrel::{Context, Endpoint, Error, Status};
use zerocopy::FromBytes;
use zerocopy::big_endian::U64 as Key;

use crate::error::StoreError;
use crate::limits::{PAIR_HEAD_BYTES, SCAN_BYTES_MAX, SCAN_PAIRS_MAX, SUM_KEYS_MAX};
use crate::metrics::Metrics;
use crate::service::{
    Blob, Found, Method, Page, Pairs, PairsServer, ScanRange, Sum, SumRange, Word, Words,
    WordsServer,
};
use crate::store::Store;

/// State of the handlers of an endpoint.
#[derive(Debug)]
struct Handlers {
    store: Arc<Store>,
    metrics: Arc<Metrics>,
    /// The number of the endpoint, and of the event loop's part of the counters.
    number: u16,
}

/// Registers the service's handlers on an endpoint, number `number` on the store. Scans run in `workers`.
///
/// # Panics
/// If the metrics are for fewer dispatch threads, or the endpoint has handlers for the service's methods.
pub fn register(
    endpoint: &mut Endpoint,
    store: &Arc<Store>,
    metrics: &Arc<Metrics>,
    number: u16,
    workers: &Workers,
) {
    let handlers = Handlers { store: Arc::clone(store), metrics: Arc::clone(metrics), number };
    // Panics now instead of at the first request.
    let _ = handlers.metrics.dispatch(number);
    let handlers = Arc::new(handlers);
    endpoint.serve(WordsServer::shared(Arc::clone(&handlers), workers));
    endpoint.serve(PairsServer::shared(handlers, workers));
}

/// Prefetches the memory for lookups of words, on an endpoint with the handlers of [`register`], so that cache misses
/// overlap.
pub fn prefetch_words(endpoint: &mut Endpoint, store: &Arc<Store>) {
    let store = Arc::clone(store);
    endpoint.prefetch(Method::GetWord as u16, move |message| {
        Key::read_from_bytes(message).map_or(std::ptr::null(), |key| store.words.address(key.get()))
    });
}

impl Handlers {
    #[inline]
    fn count(&self, method: Method) {
        self.metrics.dispatch(self.number).count(method);
    }

    /// Counts a scan, which may be too large.
    fn count_scan(
        &self,
        method: Method,
        what: &str,
        (wanted, max): (u32, u32),
    ) -> Result<(), Error> {
        let counters = self.metrics.workers();
        counters.count_shared(method);
        if wanted <= max {
            return Ok(());
        }
        counters.count_refused();
        let text = format!("{wanted} were asked for; at most {max} {what} at a time");
        Err(Error::new(Status::InvalidArgument, text))
    }

    #[cold]
    fn refuse(&self, error: StoreError) -> Error {
        self.metrics.dispatch(self.number).count_refused();
        Error::new(error.status(), error.to_string())
    }
}

impl Words for Handlers {
    fn get(&self, _: &mut Context<'_>, key: Key) -> Result<Found, Error> {
        self.count(Method::GetWord);
        Ok(self.store.words.get(key.get()).into())
    }

    fn put(&self, _: &mut Context<'_>, word: Word) -> Result<Found, Error> {
        self.count(Method::PutWord);
        let former = self.store.words.put(word.key.get(), word.value.get());
        former.map(Found::from).map_err(|error| self.refuse(error))
    }

    fn delete(&self, _: &mut Context<'_>, key: Key) -> Result<Found, Error> {
        self.count(Method::DeleteWord);
        Ok(self.store.words.delete(key.get()).into())
    }

    fn sum(&self, _: &WorkerRequest, SumRange { after, count }: SumRange) -> Result<Sum, Error> {
        let count = count.get();
        self.count_scan(Method::SumWords, "keys are summed up", (count, SUM_KEYS_MAX))?;
        let (found, sum) = self.store.words.sum_after(after.get(), count as usize);
        Ok(Sum { found: (found as u32).into(), sum: sum.into() })
    }

    fn echo(&self, _: &mut Context<'_>, key: Key) -> Result<Key, Error> {
        self.count(Method::Echo);
        Ok(key)
    }
}

impl Pairs for Handlers {
    fn scan_words(
        &self,
        _: &WorkerRequest,
        ScanRange { from, limit }: ScanRange<u64>,
    ) -> Result<Page<u64, u64>, Error> {
        self.count_scan(Method::ScanWords, "pairs are answered", (limit, SCAN_PAIRS_MAX))?;
        let mut pairs = Vec::new();
        self.store.words.scan(from, limit as usize, |key, value| pairs.push((key, value)));
        Ok(Page { pairs, is_cut: false })
    }

    fn get(&self, _: &mut Context<'_>, key: Blob) -> Result<Option<Blob>, Error> {
        self.count(Method::GetBytes);
        Ok(self.store.bytes.get(&key).map(Blob))
    }

    fn put(&self, _: &mut Context<'_>, (key, value): (Blob, Blob)) -> Result<bool, Error> {
        self.count(Method::PutBytes);
        self.store.bytes.put_value(&key, value.0).map_err(|error| self.refuse(error))
    }

    fn delete(&self, _: &mut Context<'_>, key: Blob) -> Result<bool, Error> {
        self.count(Method::DeleteBytes);
        Ok(self.store.bytes.delete(&key))
    }

    fn scan(
        &self,
        _: &WorkerRequest,
        ScanRange { from, limit }: ScanRange<Blob>,
    ) -> Result<Page<Blob, Blob>, Error> {
        self.count_scan(Method::ScanBytes, "pairs are answered", (limit, SCAN_PAIRS_MAX))?;
        let (mut page, mut bytes) = (Page { pairs: Vec::new(), is_cut: false }, 0);
        if limit == 0 {
            return Ok(page);
        }
        self.store.bytes.scan(from.as_ref().map(|key| &**key), |key, value| {
            bytes += PAIR_HEAD_BYTES + key.len() + value.len();
            if bytes > SCAN_BYTES_MAX {
                page.is_cut = true;
                return ControlFlow::Break(());
            }
            page.pairs.push((Blob(Arc::clone(key)), Blob(Arc::clone(value))));
            match page.pairs.len() < limit as usize {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
        Ok(page)
    }

    fn status(&self, _: &mut Context<'_>, (): ()) -> Result<Vec<(String, u64)>, Error> {
        self.count(Method::Status);
        Ok(self.metrics.report(&self.store))
    }
}
