//! The handlers of the service.
//!
//! GET, PUT and DELETE run in the event loop, because a lookup takes less time than the handover to a worker. Scans run
//! in workers, or in the event loop if there are no workers.

use std::ops::ControlFlow;
use std::sync::Arc;

use petrel::endpoint::Handled;
use petrel::workers::Workers;
use petrel::{Context, Endpoint, Request};

use crate::error::{Malformed, StoreError};
use crate::limits::{SCAN_BYTES_MAX, SCAN_PAIRS_MAX, SUM_KEYS_MAX};
use crate::metrics::Metrics;
use crate::store::Store;
use crate::wire::{
    BytesPair, DeleteBytes, DeleteWord, Echo, GetBytes, GetWord, Method, PAIR_HEAD_BYTES, Page,
    PutBytes, PutWord, ScanBytes, ScanRange, ScanWords, Status, Sum, SumWords, word_key,
};

/// The place where scans run.
#[derive(Clone, Copy, Debug)]
pub enum Scans<'a> {
    /// In the threads of a worker pool.
    Workers(&'a Workers),
    /// In the event loop, where all other requests wait meanwhile.
    Dispatch,
}

/// The reason why a request was not executed.
#[derive(Debug)]
struct Refusal {
    status: petrel::Status,
    message: String,
}

impl From<Malformed> for Refusal {
    fn from(error: Malformed) -> Self {
        Self { status: petrel::Status::InvalidArgument, message: error.to_string() }
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self { status: error.status(), message: error.to_string() }
    }
}

/// State shared by the handlers.
#[derive(Clone, Debug)]
struct Shared {
    store: Arc<Store>,
    metrics: Arc<Metrics>,
    /// The number of the endpoint, and of the event loop's part of the counters.
    number: u16,
}

/// Registers the service's handlers on an endpoint, number `number` on the store.
///
/// # Panics
/// If the metrics are for fewer dispatch threads.
pub fn register(
    endpoint: &mut Endpoint,
    store: &Arc<Store>,
    metrics: &Arc<Metrics>,
    number: u16,
    scans: Scans<'_>,
) {
    let shared = Shared { store: Arc::clone(store), metrics: Arc::clone(metrics), number };
    // Panics now instead of at the first request.
    let _ = shared.metrics.dispatch(number);
    register_gets(endpoint, &shared);
    serve::<PutWord>(endpoint, &shared, |shared, (key, value)| {
        Ok(shared.store.words.put(key, value)?)
    });
    serve::<DeleteWord>(endpoint, &shared, |shared, key| Ok(shared.store.words.delete(key)));
    serve::<PutBytes>(endpoint, &shared, |shared, (key, value)| {
        Ok(shared.store.bytes.put(key, value)?)
    });
    serve::<DeleteBytes>(endpoint, &shared, |shared, key| Ok(shared.store.bytes.delete(key)));
    serve::<Status>(endpoint, &shared, |shared, ()| Ok(shared.metrics.report(&shared.store)));
    serve_scan::<SumWords>(endpoint, &shared, scans, sum_words);
    serve_scan::<ScanWords>(endpoint, &shared, scans, scan_words);
    serve_scan::<ScanBytes>(endpoint, &shared, scans, scan_bytes);
}

/// Prefetches the memory for lookups of words, on an endpoint with the handlers of [`register`], so that cache misses
/// overlap.
pub fn prefetch_words(endpoint: &mut Endpoint, store: &Arc<Store>) {
    let store = Arc::clone(store);
    endpoint.prefetch(GetWord::NUMBER, move |message| {
        word_key(message).map_or(std::ptr::null(), |key| store.words.address(key))
    });
}

/// Registers the lookups, which reply without an intermediate vector.
fn register_gets(endpoint: &mut Endpoint, shared: &Shared) {
    let here = shared.clone();
    endpoint.on(GetWord::NUMBER, move |_, cx, request| {
        here.count(GetWord::NUMBER);
        match word_key(request.data()) {
            Some(key) => match here.store.words.get(key) {
                Some(value) => request.reply(cx, &value.to_le_bytes()),
                None => request.reply(cx, &[]),
            },
            None => here.refuse_word(cx, request),
        }
    });
    let here = shared.clone();
    endpoint.on(GetBytes::NUMBER, move |_, cx, request| {
        here.count(GetBytes::NUMBER);
        let Some(value) = here.store.bytes.get(request.data()) else {
            return request.reply(cx, &[]);
        };
        request.reply_with(cx, 1 + value.len(), |_, out| {
            out[0] = 1;
            out[1..].copy_from_slice(&value);
            out.len()
        })
    });
    let here = shared.clone();
    endpoint.on(Echo::NUMBER, move |_, cx, request| {
        here.count(Echo::NUMBER);
        let bytes = request.data().len();
        request.reply_with(cx, bytes, |data, out| {
            out.copy_from_slice(data);
            bytes
        })
    });
}

impl Shared {
    #[inline]
    fn count(&self, method: u16) {
        self.metrics.dispatch(self.number).count(method);
    }

    #[cold]
    fn refuse_word(&self, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        match GetWord::decode_request(request.data()) {
            Err(error) => self.refuse(cx, request, &error.into()),
            Ok(_) => unreachable!("that was no key"),
        }
    }

    #[cold]
    fn refuse(&self, cx: &mut Context<'_>, request: Request<'_>, refusal: &Refusal) -> Handled {
        self.metrics.dispatch(self.number).count_refused();
        request.fail(cx, refusal.status, &refusal.message)
    }
}

/// Executes a method's request.
type Run<M> = fn(&Shared, <M as Method>::Request<'_>) -> Result<<M as Method>::Response, Refusal>;

fn answer<M: Method>(shared: &Shared, message: &[u8], run: Run<M>) -> Result<Vec<u8>, Refusal> {
    Ok(M::encode_response(&run(shared, M::decode_request(message)?)?))
}

/// Registers a method whose requests the event loop executes.
fn serve<M: Method + 'static>(endpoint: &mut Endpoint, shared: &Shared, run: Run<M>) {
    let here = shared.clone();
    endpoint.on(M::NUMBER, move |_, cx, request| {
        here.count(M::NUMBER);
        match answer::<M>(&here, request.data(), run) {
            Ok(message) => request.reply(cx, &message),
            Err(refusal) => here.refuse(cx, request, &refusal),
        }
    });
}

/// Registers a method whose requests may take long.
fn serve_scan<M: Method + 'static>(
    endpoint: &mut Endpoint,
    shared: &Shared,
    scans: Scans<'_>,
    run: Run<M>,
) {
    let Scans::Workers(workers) = scans else { return serve::<M>(endpoint, shared, run) };
    let here = shared.clone();
    endpoint.on_worker(M::NUMBER, workers, move |request| {
        let counters = here.metrics.workers();
        counters.count_shared(M::NUMBER);
        match answer::<M>(&here, request.data(), run) {
            Ok(message) => request.reply_vec(message),
            Err(refusal) => {
                counters.count_refused();
                request.fail(refusal.status, &refusal.message);
            }
        }
    });
}

fn sum_words(shared: &Shared, (after, count): (u64, u32)) -> Result<Sum, Refusal> {
    check_limit("keys are summed up", count, SUM_KEYS_MAX)?;
    let (found, sum) = shared.store.words.sum_after(after, count as usize);
    Ok(Sum { found: found as u32, sum })
}

fn scan_words(shared: &Shared, range: ScanRange<u64>) -> Result<Page<(u64, u64)>, Refusal> {
    check_limit("pairs are answered", range.limit, SCAN_PAIRS_MAX)?;
    let mut pairs = Vec::new();
    let visit = |key, value| pairs.push((key, value));
    shared.store.words.scan(range.from, range.limit as usize, visit);
    Ok(Page { pairs, is_cut: false })
}

fn scan_bytes(shared: &Shared, range: ScanRange<&[u8]>) -> Result<Page<BytesPair>, Refusal> {
    check_limit("pairs are answered", range.limit, SCAN_PAIRS_MAX)?;
    let (mut page, mut bytes) = (Page::default(), 0);
    if range.limit == 0 {
        return Ok(page);
    }
    shared.store.bytes.scan(range.from, |key, value| {
        bytes += PAIR_HEAD_BYTES + key.len() + value.len();
        if bytes > SCAN_BYTES_MAX {
            page.is_cut = true;
            return ControlFlow::Break(());
        }
        page.pairs.push((key.to_vec(), value.to_vec()));
        match page.pairs.len() < range.limit as usize {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    });
    Ok(page)
}

fn check_limit(what: &str, wanted: u32, max: u32) -> Result<(), Refusal> {
    if wanted <= max {
        return Ok(());
    }
    let message = format!("{wanted} were asked for; at most {max} {what} at a time");
    Err(Refusal { status: petrel::Status::InvalidArgument, message })
}
