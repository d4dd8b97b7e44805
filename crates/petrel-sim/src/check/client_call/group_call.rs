//! Calls to groups of a node's sessions, made as futures and with continuations.

use std::rc::Rc;
use std::time::Duration;

use petrel::endpoint::{CallOptions, SharedMsg};
use petrel::group::{Group, GroupCall, GroupReply, Late, Need};

use super::{ClientCall, Destinations, SimulatedCaller};
use crate::check::node::{Node, Shared};
use crate::rng::Rng;

/// A group call before it is made.
struct PendingGroupCall {
    id: u32,
    group: Group,
    message: SharedMsg,
    call: GroupCall,
    timeout_ns: Option<u64>,
}

impl Node {
    /// Calls some of the sessions as a group.
    pub(super) fn call_group(&mut self, caller: &mut SimulatedCaller) {
        let rng = &mut caller.rng;
        let members = self.draw_members(rng);
        let Ok(group) = Group::new(members.iter().map(|open| open.session)) else { return };
        let need = draw_need(rng, members.len());
        let needed = need.of(members.len()).unwrap_or(1);
        let cancels = rng.below(2) == 0;
        let servers = members.iter().map(|open| open.target.at).collect();
        let client_call =
            self.draw_client_call(rng, Destinations::Group { needed, cancels }, servers);
        let timeout_ns = (rng.below(2) == 0).then(|| 1 << rng.between(16, 27));
        let is_future = rng.below(2) == 0;
        let call = group_call(&client_call, need, timeout_ns, cancels);
        let (id, request) = self.shared.ledger().issue_client_call(client_call);
        let Ok(message) = self.endpoint.handle().share(&request) else {
            return self.shared.ledger().drop_client_call(id);
        };
        self.shared.pending.set(self.shared.pending.get() + 1);
        let pending_call = PendingGroupCall { id, group, message, call, timeout_ns };
        match is_future {
            true => self.call_as_future(pending_call),
            false => self.call_with_continuation(pending_call),
        }
    }

    fn call_as_future(&mut self, pending_call: PendingGroupCall) {
        let (handle, shared) = (self.endpoint.handle(), Rc::clone(&self.shared));
        self.endpoint.handle().spawn(async move {
            let PendingGroupCall { id, group, message, call, timeout_ns } = pending_call;
            shared.begin_client_call(id, timeout_ns);
            let GroupCall { method, need, options, late, .. } = call;
            let called = group.call_async(&handle, method, &message, need, options, late);
            let reply = called.await;
            shared.end_group_call(id, reply);
        });
    }

    fn call_with_continuation(&mut self, pending_call: PendingGroupCall) {
        let PendingGroupCall { id, group, message, call, timeout_ns } = pending_call;
        let shared = Rc::clone(&self.shared);
        let mut cx = self.endpoint.context();
        shared.begin_client_call(id, timeout_ns);
        let ended = Rc::clone(&shared);
        let called = group.call(&mut cx, &message, call, move |_, _, reply| {
            ended.end_group_call(id, reply);
        });
        if let Err(failure) = called {
            shared.end_group_call(id, Err(failure));
        }
    }
}

impl Shared {
    fn end_group_call(&self, id: u32, reply: GroupReply) {
        self.pending.set(self.pending.get() - 1);
        match reply {
            Ok(members) => self.ledger().end_group(id, true, &members),
            Err(failure) => self.ledger().end_group(id, false, &failure.members),
        }
    }
}

fn draw_need(rng: &mut Rng, members: usize) -> Need {
    match rng.below(4) {
        0 => Need::All,
        1 => Need::Any,
        _ => Need::Quorum(members / 2 + 1),
    }
}

fn group_call(
    client_call: &ClientCall,
    need: Need,
    timeout_ns: Option<u64>,
    cancels: bool,
) -> GroupCall {
    let mut call = GroupCall::new(client_call.work.number(), need);
    call.response_bytes_max = client_call.response_len as usize;
    if let Some(timeout_ns) = timeout_ns {
        call.options = CallOptions::new().timeout(Duration::from_nanos(timeout_ns));
    }
    call.late = if cancels { Late::Cancel } else { Late::Finish };
    call
}
