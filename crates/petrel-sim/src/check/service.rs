//! The methods that every node serves.

use std::rc::Rc;

use petrel::endpoint::{Handled, Responder};
use petrel::{Context, MsgBuf, Request, Status};

use super::call::{GROWN_BYTES, Method, Spec, answer_seed, fail_status};
use super::client_call::{Instructions, Work, redirect};
use super::handlers;
use super::node::{Answer, Deferred, Shared};
use super::pattern;
use super::worker_pool::{self, Task};
use crate::world::SimEndpoint;

/// Registers the handlers.
pub(super) fn serve(shared: &Rc<Shared>, endpoint: &mut SimEndpoint) {
    let has_workers = shared.common.scenario.has_client_calls();
    for method in Method::SERVED {
        if method == Method::Deferred && has_workers {
            worker_pool::register(shared, endpoint, method.number(), Task::Call(method));
            continue;
        }
        if handlers::register(shared, endpoint, method) {
            continue;
        }
        let here = Rc::clone(shared);
        register(shared, endpoint, method.number(), move |cx, request| {
            handle(&here, cx, request, method)
        });
    }
    for work in Work::ALL {
        if work == Work::WorkerPool {
            worker_pool::register(shared, endpoint, work.number(), Task::ClientCall(work));
            continue;
        }
        let here = Rc::clone(shared);
        register(shared, endpoint, work.number(), move |cx, request| run(&here, cx, request, work));
    }
}

/// Registers a handler for single requests, or for the requests of a burst, which it then handles in turn.
fn register(
    shared: &Rc<Shared>,
    endpoint: &mut SimEndpoint,
    method: u16,
    mut handler: impl FnMut(&mut Context<'_>, Request<'_>) -> Handled + 'static,
) {
    if !shared.common.has_batches {
        return endpoint.on(method, move |_, cx, request| handler(cx, request));
    }
    let here = Rc::clone(shared);
    endpoint.on_batch(method, move |_, cx, batch| {
        let largest = &here.common.largest_batch;
        largest.set(largest.get().max(batch.len()));
        batch.answer_each(cx, &mut handler);
    });
}

/// Handles a client or group call.
fn run(shared: &Rc<Shared>, cx: &mut Context<'_>, request: Request<'_>, work: Work) -> Handled {
    shared.served.borrow_mut().insert(request.session());
    let id = pattern::id_of(request.data()).unwrap_or_default();
    if work.is_refused(id, shared.at) {
        return request.refuse(cx, Status::FailedPrecondition, "not here");
    }
    if let Some(response) = redirect::redirect(shared, work, id) {
        return request.reply(cx, &response);
    }
    let deadline_ns = request.deadline(cx).map(petrel::Time::as_ns);
    let instructions =
        shared.ledger().execute_client_call(shared.at, work, request.data(), deadline_ns);
    let Some(Instructions { id, seed, len, delay_ns }) = instructions else {
        return request.fail(cx, Status::Internal, "no such client call");
    };
    if matches!(work, Work::AtOnce | Work::Led) {
        return transform(cx, request, seed, len, id);
    }
    let due_ns = cx.now().as_ns() + delay_ns;
    let (responder, handled) = request.defer(cx);
    let answer = Answer::Made { seed, len };
    shared.deferred.borrow_mut().push(Deferred { due_ns, id, responder, message: None, answer });
    handled
}

/// Records the execution of a request, and answers by its method.
fn handle(
    shared: &Rc<Shared>,
    cx: &mut Context<'_>,
    request: Request<'_>,
    method: Method,
) -> Handled {
    shared.served.borrow_mut().insert(request.session());
    let deadline_ns = request.deadline(cx).map(petrel::Time::as_ns);
    let id = shared.ledger().execute(shared.at, method, request.data(), deadline_ns);
    let Some(id) = id else { return handle_tiny(cx, request, method) };
    let (spec, fail_text) = {
        let ledger = shared.ledger();
        let call = ledger.call(id);
        (call.spec, (method == Method::Fail).then(|| call.fail_text(id)))
    };
    let len = spec.response_len as usize;
    let seed = match method {
        Method::Echo | Method::Fail | Method::Drop => 0,
        _ => answer_seed(request.data()),
    };
    shared.ledger().note_seed(id, seed);
    match method {
        Method::Echo => echo(cx, request, id),
        Method::Transform | Method::Huge => transform(cx, request, seed, len, id),
        Method::Deferred => defer(shared, cx, request, spec, seed, id),
        Method::Nested => nest(shared, cx, request, spec, seed, id),
        Method::Drop => forget(shared, cx, request, spec, id),
        Method::Fail => {
            let text = String::from_utf8(fail_text.unwrap_or_default()).unwrap_or_default();
            request.fail(cx, fail_status(id), &text)
        }
        Method::TinyEcho | Method::TinyGrow | Method::Unknown => {
            request.fail(cx, Status::Internal, "no such call")
        }
    }
}

fn handle_tiny(cx: &mut Context<'_>, request: Request<'_>, method: Method) -> Handled {
    match method {
        Method::TinyEcho => echo(cx, request, 0),
        Method::TinyGrow => {
            let seed = answer_seed(request.data());
            transform(cx, request, seed, GROWN_BYTES as usize, 0)
        }
        _ => request.fail(cx, Status::Internal, "no such call"),
    }
}

fn echo(cx: &mut Context<'_>, request: Request<'_>, id: u32) -> Handled {
    if id.is_multiple_of(2) {
        let copy = request.data().to_vec();
        return request.reply(cx, &copy);
    }
    let len = request.data().len();
    request.reply_with(cx, len, |data, out| {
        out.copy_from_slice(data);
        len
    })
}

fn transform(
    cx: &mut Context<'_>,
    request: Request<'_>,
    seed: u64,
    len: usize,
    id: u32,
) -> Handled {
    if id.is_multiple_of(2) {
        return request.reply_with(cx, len, |_, out| {
            pattern::fill(seed, out);
            len
        });
    }
    match answer(cx, seed, len) {
        Ok(message) => request.reply_buffer(cx, message),
        Err(text) => request.fail(cx, Status::ResourceExhausted, text),
    }
}

fn answer(cx: &Context<'_>, seed: u64, len: usize) -> Result<MsgBuf, &'static str> {
    let mut message = cx.alloc(len).map_err(|_| "the server has no memory left")?;
    message.set_len(len);
    pattern::fill(seed, &mut message);
    Ok(message)
}

/// Answers a waiting request.
fn answer_by(responder: Responder, cx: &mut Context<'_>, seed: u64, len: usize) {
    match answer(cx, seed, len) {
        Ok(message) => responder.reply_buffer(cx, message),
        Err(text) => responder.fail(cx, Status::ResourceExhausted, text),
    }
}

/// Asks for a notification when the caller stops waiting, in half of the handlers with delayed answers.
fn watch(shared: &Rc<Shared>, cx: &mut Context<'_>, responder: &Responder, id: u32) {
    if id % 4 < 2 {
        shared.ledger().watch(id, shared.endpoint_number);
        let notified = Rc::clone(shared);
        cx.on_cancel(responder, move |_, _| notified.ledger().notify(id));
    }
}

/// Defers the answer by the delay of the call, in half of the calls with the request's message.
fn defer(
    shared: &Rc<Shared>,
    cx: &mut Context<'_>,
    request: Request<'_>,
    spec: Spec,
    seed: u64,
    id: u32,
) -> Handled {
    let due_ns = cx.now().as_ns() + spec.delay_ns;
    let answer = Answer::Made { seed, len: spec.response_len as usize };
    if id.is_multiple_of(2) {
        let (responder, handled) = request.defer(cx);
        watch(shared, cx, &responder, id);
        let deferred = Deferred { due_ns, id, responder, message: None, answer };
        shared.deferred.borrow_mut().push(deferred);
        return handled;
    }
    let (kept, handled) = request.defer_message(cx);
    if let Some((responder, message)) = kept {
        watch(shared, cx, &responder, id);
        let deferred = Deferred { due_ns, id, responder, message: Some(message), answer };
        shared.deferred.borrow_mut().push(deferred);
    }
    handled
}

fn forget(
    shared: &Shared,
    cx: &mut Context<'_>,
    request: Request<'_>,
    spec: Spec,
    id: u32,
) -> Handled {
    let due_ns = cx.now().as_ns() + spec.delay_ns;
    let (responder, handled) = request.defer(cx);
    if id.is_multiple_of(2) {
        let answer = Answer::Dropped;
        let deferred = Deferred { due_ns, id, responder, message: None, answer };
        shared.deferred.borrow_mut().push(deferred);
    }
    handled
}

/// Answers after a nested call to another endpoint has ended.
fn nest(
    shared: &Rc<Shared>,
    cx: &mut Context<'_>,
    request: Request<'_>,
    spec: Spec,
    seed: u64,
    id: u32,
) -> Handled {
    let len = spec.response_len as usize;
    let (responder, handled) = request.defer(cx);
    let nested = {
        let nested_sessions = shared.nested_sessions.borrow();
        let index = shared.rng.borrow_mut().below(nested_sessions.len() as u64) as usize;
        nested_sessions.get(index).copied()
    };
    let Some(nested) = nested else {
        responder.fail(cx, Status::Aborted, "nobody to ask");
        return handled;
    };
    let inner = Spec {
        method: if id.is_multiple_of(3) { Method::Echo } else { Method::Transform },
        request_len: spec.request_len,
        response_len: if id.is_multiple_of(3) { spec.request_len } else { spec.response_len },
        slack: 0,
        delay_ns: 0,
    };
    watch(shared, cx, &responder, id);
    let at_end = Rc::clone(shared);
    let on_end = move |cx: &mut Context<'_>, response: Option<MsgBuf>| {
        at_end.ledger().answer(id);
        match response {
            Some(response) => answer_nested(cx, responder, response, seed, len),
            None => responder.fail(cx, Status::Aborted, "the nested call failed"),
        }
    };
    shared.call(cx, (nested.session, nested.server), inner, Some(id), on_end);
    handled
}

/// Answers with the memory of the nested call's response if it is large enough.
fn answer_nested(
    cx: &mut Context<'_>,
    responder: Responder,
    mut response: MsgBuf,
    seed: u64,
    len: usize,
) {
    if response.capacity() >= len {
        response.set_len(len);
        pattern::fill(seed, &mut response);
        return responder.reply_buffer(cx, response);
    }
    drop(response);
    answer_by(responder, cx, seed, len);
}

/// Answers the deferred requests that are due.
pub(super) fn answer_due(shared: &Shared, endpoint: &mut SimEndpoint, now_ns: u64) {
    loop {
        let mut deferred = shared.deferred.borrow_mut();
        let Some(index) = deferred.iter().position(|deferred| deferred.due_ns <= now_ns) else {
            return;
        };
        let due = deferred.swap_remove(index);
        drop(deferred);
        answer_deferred(shared, &mut endpoint.context(), due);
    }
}

fn answer_deferred(shared: &Shared, cx: &mut Context<'_>, due: Deferred) {
    let Deferred { id, responder, message, answer: what, .. } = due;
    if message.is_some_and(|message| !pattern::is_request(id, &message)) {
        shared.ledger().violate(format!("the kept request of call {id} has changed"));
    }
    let Answer::Made { seed, len } = what else { return };
    shared.ledger().answer(id);
    match answer(cx, seed, len) {
        Ok(message) if id.is_multiple_of(3) => responder.reply(cx, &message),
        Ok(message) => responder.reply_buffer(cx, message),
        Err(text) => responder.fail(cx, Status::ResourceExhausted, text),
    }
}
