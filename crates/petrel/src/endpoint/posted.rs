//! Calls that other threads have posted: on a session, or for a client that has several servers and attempts.

use std::rc::Rc;

use petrel_proto::{PendingCall, SessionId, Status};
use petrel_transport::buf::PoolExhausted;

use super::call::{Continuation, Function, Reply};
use super::context::{Context, Local};
use super::state::State;
use crate::channel::{Beginning, Begun, Channel, Target, Unfinished};
use crate::client::ServiceKey;
use crate::client::state::{CallState, Pending};
use crate::endpoint::CallOptions;
use crate::error::Error;
use crate::local::{Command, Handle, Key, Slab, Task};
use crate::msgbuf::MsgBuf;
use crate::post::{Callee, OpenService, StartCall};
use crate::sync::Arc;

/// What an endpoint has of other threads' calls.
#[derive(Default)]
pub(super) struct Posted {
    calls: Slab<Call>,
    /// By the numbers of their keys.
    services: Vec<Option<Channel>>,
    pub(super) calls_made: u64,
    pub(super) calls_not_made: u64,
}

/// A call that another thread waits for.
struct Call {
    pending: Pending,
    way: Way,
}

/// How a call is made.
enum Way {
    /// On this session. The request's memory takes the response.
    Session(SessionId, Vec<u8>),
    /// By a client, which has begun with this session. What it was asked is kept for a second attempt.
    First(First),
    /// By a client, which needs more for it than one attempt.
    Task(Task<()>),
}

struct First {
    session: SessionId,
    asked: Asked,
    begun: Begun,
}

/// What a client's call asks.
struct Asked {
    service: ServiceKey,
    method: u16,
    request: Vec<u8>,
}

impl Way {
    /// The session, and the request that goes there.
    fn on_session(&self) -> (SessionId, &[u8]) {
        match self {
            Way::Session(session, request) => (*session, request),
            Way::First(First { session, asked, .. }) => (*session, &asked.request),
            Way::Task(_) => unreachable!("a task makes its own calls"),
        }
    }
}

impl Posted {
    /// Takes in a call that is on its way.
    fn insert(&mut self, Call { pending, way }: Call) -> Key {
        self.insert_with(pending, |_| way)
    }

    fn insert_with(&mut self, mut pending: Pending, way: impl FnOnce(Key) -> Way) -> Key {
        self.calls.insert_with(|key| {
            pending.set_key(key.to_bits() as usize);
            Call { pending, way: way(key) }
        })
    }

    /// Calls on their way.
    pub(super) fn calls_len(&self) -> usize {
        self.calls.len()
    }

    /// Clients that there are.
    pub(super) fn services_len(&self) -> usize {
        self.services.iter().flatten().count()
    }

    fn service(&self, key: ServiceKey) -> Option<&Channel> {
        self.services.get(key.index())?.as_ref()
    }
}

/// A client connects to its servers.
pub(super) fn open_service(local: &mut Local, open: OpenService) {
    let OpenService { service, targets, look_up, config, opened } = open;
    let Some(service) = service.upgrade() else { return };
    let handle = Handle::<()>::new(Rc::clone(&local.hub));
    let channel = handle.channel_that_counts(targets, config, Arc::clone(service.counters()));
    if let Some(look_up) = look_up {
        channel.set_resolver(look_up);
    }
    let of_task = channel.clone();
    // It ends with the first session, or with the first failure of all servers.
    drop(handle.spawn(async move {
        let outcome = of_task.opened().await;
        drop(of_task);
        opened.end(outcome.map(|()| Vec::new()));
    }));
    let services = &mut local.remote.posted.services;
    let index = service.key().index();
    if services.len() <= index {
        services.resize_with(index + 1, || None);
    }
    assert!(services[index].is_none(), "the number of a service is used once at a time");
    services[index] = Some(channel);
}

/// The servers of a client have changed.
pub(super) fn set_targets(local: &mut Local, key: ServiceKey, targets: Vec<Target>) {
    if let Some(channel) = local.remote.posted.service(key) {
        channel.set_targets(targets);
    }
}

/// The last handle of a client is gone: its sessions are closed when its last call has ended.
pub(super) fn close_service(local: &mut Local, key: ServiceKey) {
    let service = local.remote.posted.services.get_mut(key.index());
    drop(service.and_then(Option::take));
}

pub(super) fn start_call(cx: &mut Context<'_>, start: StartCall) {
    let StartCall { pending, callee, method, request, options } = start;
    if !pending.is_wanted() {
        return;
    }
    match callee {
        Callee::Session { session, response_max } => {
            let room = cx.alloc(response_max);
            let call = Call { pending, way: Way::Session(session, request) };
            if let Some((call, error)) = make(cx, call, method, options, room) {
                call.pending.end(Err(error));
            }
        }
        Callee::Service(service) => {
            let asked = Asked { service, method, request };
            start_service_call(cx, pending, asked, options);
        }
    }
}

/// Makes the call of a client: at once if a server can be asked, which is so for most.
fn start_service_call(cx: &mut Context<'_>, pending: Pending, asked: Asked, options: CallOptions) {
    let Local { remote, now_ns, .. } = &mut *cx.local;
    let Some(channel) = remote.posted.service(asked.service) else {
        return pending.end_unsent(Status::Unavailable, "the client is gone");
    };
    let (session, options, begun) = match channel.begin(options, *now_ns) {
        Beginning::Attempt(session, options, begun) => (session, options, begun),
        Beginning::Later(unfinished) => {
            let channel = channel.clone();
            remote.posted.calls_made += 1;
            return finish_in_task(cx.local, channel, pending, asked, unfinished);
        }
    };
    let room = cx.local.hub.alloc_response(options.response_bytes);
    let method = asked.method;
    let call = Call { pending, way: Way::First(First { session, asked, begun }) };
    if let Some((Call { pending, way: Way::First(first) }, error)) =
        make(cx, call, method, options, room)
    {
        first_failed(cx.local, pending, first, error);
    }
}

/// Makes a call on its session. Gives one back that cannot be made, and why.
fn make(
    cx: &mut Context<'_>,
    mut call: Call,
    method: u16,
    options: CallOptions,
    room: Result<MsgBuf, PoolExhausted>,
) -> Option<(Call, Error)> {
    let (session, request) = call.way.on_session();
    let buffers = cx.alloc_message(request).and_then(|message| Ok((message, room?)));
    let Local { core, remote, now_ns, sessions, .. } = &mut *cx.local;
    let (request, response) = match buffers {
        Ok(buffers) => buffers,
        Err(error) => {
            remote.posted.calls_not_made += 1;
            return Some((call, error.into()));
        }
    };
    call.pending.was_made = true;
    remote.posted.calls_made += 1;
    let key = remote.posted.insert(call);
    let tag = Continuation::function(END_CALL, key.to_bits());
    let to_make = PendingCall { method, tag, request, response };
    match core.call_with(*now_ns, session, to_make, options.limits(*now_ns)) {
        Ok(()) => None,
        Err(rejected) => {
            remote.posted.calls_not_made += 1;
            let text = sessions.explain(session, &rejected.error);
            let error = Error::not_sent(rejected.error.status(), text);
            let call = remote.posted.calls.remove(key).expect("it was put there");
            Some((call, error))
        }
    }
}

/// The first attempt of a client's call has failed.
fn first_failed(local: &mut Local, pending: Pending, first: First, error: Error) {
    let First { asked, begun, .. } = first;
    let Some(channel) = local.remote.posted.service(asked.service).cloned() else {
        return pending.end(Err(error));
    };
    match channel.failed(begun, error) {
        Err(error) => pending.end(Err(error)),
        Ok(_) if !pending.is_wanted() => {}
        Ok(unfinished) => finish_in_task(local, channel, pending, asked, unfinished),
    }
}

/// Makes what attempts are left in a task.
fn finish_in_task(
    local: &mut Local,
    channel: Channel,
    mut pending: Pending,
    asked: Asked,
    unfinished: Unfinished,
) {
    // It will be, unless it fails before.
    pending.was_made = true;
    let hub = Rc::clone(&local.hub);
    let handle = Handle::<()>::new(Rc::clone(&hub));
    local.remote.posted.insert_with(pending, |key| {
        Way::Task(handle.spawn(async move {
            let outcome = channel.finish(asked.method, &asked.request, unfinished).await;
            hub.command(Command::EndPosted(key, outcome));
        }))
    });
}

/// The task of a call has ended.
pub(super) fn end_task(local: &mut Local, key: Key, outcome: Result<MsgBuf, Error>) {
    if let Some(Call { pending, .. }) = local.remote.posted.calls.remove(key) {
        pending.end(outcome.map(|response| response.to_vec()));
    }
}

/// The call is no longer wanted: it ends now, and its server is told.
pub(super) fn cancel_call(local: &mut Local, state: &CallState) {
    let Some(key) = state.key().map(|key| Key::from_bits(key as u64)) else { return };
    let Some(call) = local.remote.posted.calls.get_mut(key) else { return };
    let is_over = match &call.way {
        Way::Task(task) => {
            task.abort();
            true
        }
        Way::Session(session, _) | Way::First(First { session, .. }) => {
            let session = *session;
            local.cancel_fn(session, END_CALL, key.to_bits()).is_some()
        }
    };
    if is_over && let Some(Call { pending, .. }) = local.remote.posted.calls.remove(key) {
        pending.end_unsent(Status::Cancelled, "the call was given up");
    }
}

/// One address for all of them: a call is found by it when it is cancelled.
const END_CALL: Function = end_call;

/// The continuation of all calls that other threads have started.
fn end_call(_state: State<'_>, cx: &mut Context<'_>, reply: Reply, key: u64) {
    let Some(Call { pending, way }) = cx.local.remote.posted.calls.remove(Key::from_bits(key))
    else {
        return;
    };
    let Reply { outcome, response, .. } = reply;
    match (way, outcome) {
        (Way::Session(_, memory), outcome) => {
            pending.end(outcome.map(|()| copied(&response, memory)));
        }
        (Way::First(First { asked, begun, .. }), Ok(())) => {
            if let Some(channel) = cx.local.remote.posted.service(asked.service) {
                channel.succeeded(begun);
            }
            pending.end(Ok(copied(&response, asked.request)));
        }
        (Way::First(first), Err(error)) => first_failed(cx.local, pending, first, error),
        (Way::Task(_), _) => unreachable!("a task makes its own calls"),
    }
}

/// The response, in memory that is there.
fn copied(response: &[u8], mut memory: Vec<u8>) -> Vec<u8> {
    memory.clear();
    memory.extend_from_slice(response);
    memory
}
