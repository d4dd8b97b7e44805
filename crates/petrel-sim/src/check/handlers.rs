//! The kinds of handlers that the library has beside plain functions: requests read in place, requests put together in the
//! application's memory, futures, and memory that is fetched ahead. Each endpoint answers [`Method::Echo`] and
//! [`Method::Transform`] by one kind; the rules are those of every handler.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use petrel::Status;

use super::call::{Method, answer_seed};
use super::node::Shared;
use super::pattern;
use crate::world::SimEndpoint;

/// How an endpoint's handlers get their requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    InPlace,
    Placed,
    Future,
    /// Plain, with memory fetched ahead.
    Ahead,
}

impl Kind {
    fn of(endpoint_number: u32) -> Self {
        let kinds = [Kind::Plain, Kind::InPlace, Kind::Placed, Kind::Future, Kind::Ahead];
        kinds[endpoint_number as usize % kinds.len()]
    }
}

const NO_CALL: &str = "no such call";

/// Registers the handler of a method, unless the endpoint's kind uses the plain handler.
pub(super) fn register(shared: &Rc<Shared>, endpoint: &mut SimEndpoint, method: Method) -> bool {
    if !matches!(method, Method::Echo | Method::Transform) || shared.common.has_batches {
        return false;
    }
    match Kind::of(shared.endpoint_number) {
        Kind::Plain => return false,
        Kind::InPlace => in_place(shared, endpoint, method),
        Kind::Placed => placed(shared, endpoint, method),
        Kind::Future => future(shared, endpoint, method),
        Kind::Ahead => {
            fetch_ahead(shared, endpoint, method);
            return false;
        }
    }
    true
}

struct Answer {
    id: u32,
    method: Method,
    seed: u64,
    len: usize,
}

impl Answer {
    /// Records the execution of a request. `None` if no call made the request, which breaks a rule.
    fn begin(
        shared: &Shared,
        method: Method,
        request: &[u8],
        deadline: Option<petrel::Time>,
    ) -> Option<Self> {
        let mut ledger = shared.ledger();
        let id = ledger.execute(shared.at, method, request, deadline.map(petrel::Time::as_ns))?;
        let seed = if method == Method::Echo { 0 } else { answer_seed(request) };
        ledger.note_seed(id, seed);
        let len = ledger.call(id).spec.response_len as usize;
        Some(Self { id, method, seed, len })
    }

    /// Makes the message of the answer in memory of its length.
    fn fill(&self, request: &[u8], out: &mut [u8]) {
        match self.method {
            Method::Echo => out.copy_from_slice(request),
            _ => pattern::fill(self.seed, out),
        }
    }

    fn message(&self, request: &[u8]) -> Vec<u8> {
        let mut message = vec![0; self.len];
        self.fill(request, &mut message);
        message
    }
}

/// Registers a handler that reads requests in place.
fn in_place(shared: &Rc<Shared>, endpoint: &mut SimEndpoint, method: Method) {
    let shared = Rc::clone(shared);
    endpoint.on_in_place(method.number(), move |_, cx, request| {
        shared.served.borrow_mut().insert(request.session());
        let copy = request.data().to_vec();
        let Some(answer) = Answer::begin(&shared, method, &copy, request.deadline(cx)) else {
            return request.fail(cx, Status::Internal, NO_CALL);
        };
        shared.ledger().counts.in_place += 1;
        if answer.id.is_multiple_of(2) {
            return request.reply(cx, &answer.message(&copy));
        }
        request.reply_with(cx, answer.len, |_, out| {
            answer.fill(&copy, out);
            answer.len
        })
    });
}

/// Registers a handler for which two of three large requests arrive in memory of the application.
fn placed(shared: &Rc<Shared>, endpoint: &mut SimEndpoint, method: Method) {
    let shared = Rc::clone(shared);
    let destination = |_: &mut (), len: usize| (!len.is_multiple_of(3)).then(|| vec![0; len]);
    endpoint.receive_into(method.number(), destination, move |_, cx, request, placed| {
        shared.served.borrow_mut().insert(request.session());
        shared.ledger().counts.placed += u64::from(placed.is_some());
        let message: &[u8] = placed.as_deref().unwrap_or(request.data());
        let deadline = request.deadline(cx);
        match Answer::begin(&shared, method, message, deadline) {
            Some(answer) => {
                let message = answer.message(message);
                request.reply(cx, &message)
            }
            None => request.fail(cx, Status::Internal, NO_CALL),
        }
    });
}

/// Registers a future, which answers after two sleeps, or at once.
fn future(shared: &Rc<Shared>, endpoint: &mut SimEndpoint, method: Method) {
    let shared = Rc::clone(shared);
    endpoint.on_async(method.number(), move |handle, request| {
        shared.served.borrow_mut().insert(request.session());
        let answer = Answer::begin(&shared, method, request.data(), request.deadline());
        shared.ledger().counts.futures += 1;
        async move {
            let answer = answer.ok_or_else(|| petrel::Error::new(Status::Internal, NO_CALL))?;
            if answer.id.is_multiple_of(3) {
                let pause = Duration::from_nanos(u64::from(answer.id % 1_000));
                handle.sleep(pause).await;
                handle.sleep(pause).await;
            }
            Ok(answer.message(request.data()))
        }
    });
}

/// Registers both steps of a prefetch. The second step must get each word of the first step once.
fn fetch_ahead(shared: &Rc<Shared>, endpoint: &mut SimEndpoint, method: Method) {
    if method == Method::Echo {
        return endpoint.prefetch(method.number(), |message| message.as_ptr());
    }
    let located = Rc::new(RefCell::new(BTreeSet::new()));
    let (shared, known) = (Rc::clone(shared), Rc::clone(&located));
    let locate = move |message: &[u8]| {
        let word = pattern::hash(message);
        located.borrow_mut().insert(word);
        (message.as_ptr(), word)
    };
    endpoint.prefetch_then(method.number(), locate, move |_, word| {
        shared.ledger().counts.looked_ahead += 1;
        if !known.borrow_mut().remove(&word) {
            let text = format!("{} looks ahead twice, or for no request: {word:#x}", shared.at);
            shared.ledger().violate(text);
        }
    });
}
