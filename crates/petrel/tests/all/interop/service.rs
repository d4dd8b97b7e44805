//! The methods of the second process.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;

use petrel::endpoint::{Handled, Responder};
use petrel::{Context, Endpoint, Request, Status};

pub(crate) use crate::common::ECHO;
use crate::common::{builder, echo, over};

/// Fails with the status whose code is the first byte, and the rest of the request as the message.
pub(crate) const FAIL: u16 = 2;
/// Keeps the request, and answers with the process's id when [`RELEASE`] comes.
pub(crate) const KEEP: u16 = 4;
/// Answers all kept requests.
pub(crate) const RELEASE: u16 = 5;
/// Answers with how often [`KEEP`] has run: a little-endian `u64`.
pub(crate) const KEPT: u16 = 7;
/// Answers with how often [`KEEP`] has run with these bytes: a little-endian `u64`.
pub(crate) const RUNS: u16 = 8;
/// Answers with the process's id.
pub(crate) const WHO: u16 = 9;
/// Has no handler.
pub(crate) const NOBODY: u16 = 999;

/// Serves until the process ends.
pub(crate) fn serve(listen: SocketAddr, ready: impl FnOnce(&str)) {
    let nexus = builder().listen(listen).start().unwrap();
    let mut endpoint = nexus.endpoint(over(true, true)).unwrap();
    serve_messages(&mut endpoint);
    serve_kept(&mut endpoint);
    ready(&nexus.local_addr().unwrap().to_string());
    endpoint.run_until(|_, _| false);
}

fn serve_messages(endpoint: &mut Endpoint) {
    echo(endpoint, ECHO);
    endpoint.on(FAIL, |_, cx, request| {
        let (code, text) = request.data().split_first().unwrap();
        let text = str::from_utf8(text).unwrap().to_owned();
        let status = Status::from_code(*code);
        request.fail(cx, status, &text)
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
    fn keep(&mut self, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        *self.runs.entry(request.data().to_vec()).or_default() += 1;
        let (responder, handled) = request.defer(cx);
        self.responders.push(responder);
        handled
    }
}

fn serve_kept(endpoint: &mut Endpoint) {
    let kept = Rc::new(RefCell::new(Kept::default()));
    let [keep, release, runs] = [(); 3].map(|()| Rc::clone(&kept));
    endpoint.on(KEEP, move |_, cx, request| keep.borrow_mut().keep(cx, request));
    endpoint.on(RELEASE, move |_, cx, request| {
        let responders = std::mem::take(&mut release.borrow_mut().responders);
        responders.into_iter().for_each(|responder| responder.reply(cx, &who()));
        request.reply(cx, b"")
    });
    endpoint.on(KEPT, move |_, cx, request| {
        let count: u64 = kept.borrow().runs.values().sum();
        request.reply(cx, &count.to_le_bytes())
    });
    endpoint.on(RUNS, move |_, cx, request| {
        let count = runs.borrow().runs.get(request.data()).copied().unwrap_or_default();
        request.reply(cx, &count.to_le_bytes())
    });
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
