//! The methods of the second process.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use petrel::endpoint::{Handled, Responder};
use petrel::workers::{WorkerRequest, Workers};
use petrel::{Context, Endpoint, Request, Status};

pub(crate) use crate::common::ECHO;
use crate::common::{builder, over};

/// Fails with the status whose code is the first byte, and the rest of the request as the message.
pub(crate) const FAIL: u16 = 2;
/// Answers with the number of bytes in the request, a little-endian `u32`.
pub(crate) const GIVE: u16 = 3;
/// Keeps the request, and answers with the process's id when [`RELEASE`] comes.
pub(crate) const KEEP: u16 = 4;
/// Answers all kept requests.
pub(crate) const RELEASE: u16 = 5;
/// Runs on a worker until the request is cancelled.
pub(crate) const WORK: u16 = 6;
/// Answers with [`Seen`].
pub(crate) const SEEN: u16 = 7;
/// Answers with how often [`KEEP`] has run with these bytes: a little-endian `u64`.
pub(crate) const RUNS: u16 = 8;
/// Answers with the process's id.
pub(crate) const WHO: u16 = 9;
/// Has no handler.
pub(crate) const NOBODY: u16 = 999;

/// The observations of the server's handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Requests of [`KEEP`] received.
    pub(crate) kept: u64,
    /// Kept requests whose cancellation was reported.
    pub(crate) gone: u64,
    /// Requests of [`WORK`] begun by a worker.
    pub(crate) begun: u64,
    /// Requests of [`WORK`] ended by cancellation.
    pub(crate) cancelled: u64,
}

impl Seen {
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        let (words, _) = bytes.as_chunks();
        let [kept, gone, begun, cancelled] = words else { panic!("{} words", words.len()) };
        let [kept, gone, begun, cancelled] =
            [kept, gone, begun, cancelled].map(|word| u64::from_le_bytes(*word));
        Self { kept, gone, begun, cancelled }
    }
}

#[derive(Default)]
struct Counters {
    kept: AtomicU64,
    gone: AtomicU64,
    begun: AtomicU64,
    cancelled: AtomicU64,
}

impl Counters {
    fn to_bytes(&self) -> Vec<u8> {
        let all = [&self.kept, &self.gone, &self.begun, &self.cancelled];
        all.map(|counter| counter.load(SeqCst).to_le_bytes()).concat()
    }
}

/// Serves until the process ends.
pub(crate) fn serve(listen: SocketAddr, ready: impl FnOnce(&str)) {
    let nexus = builder().listen(listen).start().unwrap();
    let mut endpoint = nexus.endpoint(over(true, true)).unwrap();
    let counters = Arc::new(Counters::default());
    serve_messages(&mut endpoint);
    serve_kept(&mut endpoint, &counters);
    let workers = Workers::builder().threads(2).start().unwrap();
    let work = Arc::clone(&counters);
    endpoint.on_worker(WORK, &workers, move |request| work_until_cancelled(&work, request));
    endpoint.on(SEEN, move |_, cx, request| request.reply(cx, &counters.to_bytes()));
    ready(&nexus.local_addr().unwrap().to_string());
    endpoint.run_until(|_, _| false);
}

fn serve_messages(endpoint: &mut Endpoint) {
    endpoint.on(ECHO, |_, cx, request| {
        let len = request.data().len();
        request.reply_with(cx, len, |data, out| {
            out.copy_from_slice(data);
            len
        })
    });
    endpoint.on(FAIL, |_, cx, request| {
        let (code, text) = request.data().split_first().unwrap();
        let text = str::from_utf8(text).unwrap().to_owned();
        let status = Status::from_code(*code);
        request.fail(cx, status, &text)
    });
    endpoint.on(GIVE, |_, cx, request| {
        let len = u32::from_le_bytes(request.data().try_into().unwrap()) as usize;
        request.reply_with(cx, len, |_, out| {
            out.fill(7);
            len
        })
    });
    endpoint.on(WHO, |_, cx, request| request.reply(cx, &who()));
}

fn who() -> [u8; 4] {
    std::process::id().to_le_bytes()
}

/// Requests that wait for [`RELEASE`].
#[derive(Default)]
struct Kept {
    responders: Vec<Responder>,
    runs: HashMap<Vec<u8>, u64>,
}

impl Kept {
    fn keep(
        &mut self,
        counters: &Arc<Counters>,
        cx: &mut Context<'_>,
        request: Request<'_>,
    ) -> Handled {
        counters.kept.fetch_add(1, SeqCst);
        *self.runs.entry(request.data().to_vec()).or_default() += 1;
        let (responder, handled) = request.defer(cx);
        let counters = Arc::clone(counters);
        cx.on_cancel(&responder, move |_, _| {
            counters.gone.fetch_add(1, SeqCst);
        });
        self.responders.push(responder);
        handled
    }
}

fn serve_kept(endpoint: &mut Endpoint, counters: &Arc<Counters>) {
    let kept = Rc::new(RefCell::new(Kept::default()));
    let [keep, release, runs] = [(); 3].map(|()| Rc::clone(&kept));
    let counters = Arc::clone(counters);
    endpoint.on(KEEP, move |_, cx, request| keep.borrow_mut().keep(&counters, cx, request));
    endpoint.on(RELEASE, move |_, cx, request| {
        let responders = std::mem::take(&mut release.borrow_mut().responders);
        responders.into_iter().for_each(|responder| responder.reply(cx, &who()));
        request.reply(cx, b"")
    });
    endpoint.on(RUNS, move |_, cx, request| {
        let count = runs.borrow().runs.get(request.data()).copied().unwrap_or_default();
        request.reply(cx, &count.to_le_bytes())
    });
}

/// A long handler that regularly checks for cancellation.
fn work_until_cancelled(counters: &Counters, request: WorkerRequest) {
    counters.begun.fetch_add(1, SeqCst);
    while !request.is_cancelled() {
        thread::sleep(Duration::from_millis(1));
    }
    counters.cancelled.fetch_add(1, SeqCst);
}

/// Makes a call that is never answered, and waits for its end until the process ends.
pub(crate) fn call(server: SocketAddr, ready: impl FnOnce(&str)) {
    let mut endpoint = builder().start().unwrap().endpoint(over(true, true)).unwrap();
    let session = endpoint.connect_wait(server).unwrap();
    endpoint.call(session, ECHO, b"").wait().unwrap();
    ready("calls");
    let end = endpoint.call(session, KEEP, b"").wait();
    panic!("ended: {end:?}");
}
