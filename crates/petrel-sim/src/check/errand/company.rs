//! Calls to groups of a node's sessions, made as futures and with continuations.

use std::rc::Rc;
use std::time::Duration;

use petrel::endpoint::{CallOptions, SharedMsg};
use petrel::group::{Group, GroupCall, GroupReply, Late, Need};

use super::{Errand, Patron, Spread};
use crate::check::node::{Node, Shared};
use crate::rng::Rng;

/// A group call before it is made.
struct Company {
    id: u32,
    group: Group,
    message: SharedMsg,
    call: GroupCall,
    timeout_ns: Option<u64>,
}

impl Node {
    /// Calls some of the sessions as a group.
    pub(super) fn call_company(&mut self, patron: &mut Patron) {
        let rng = &mut patron.rng;
        let members = self.draw_members(rng);
        let Ok(group) = Group::new(members.iter().map(|open| open.session)) else { return };
        let need = draw_need(rng, members.len());
        let needed = need.of(members.len()).unwrap_or(1);
        let cancels = rng.below(2) == 0;
        let servers = members.iter().map(|open| open.target.at).collect();
        let errand = self.draw_errand(rng, Spread::Group { needed, cancels }, servers);
        let timeout_ns = (rng.below(2) == 0).then(|| 1 << rng.between(16, 27));
        let is_future = rng.below(2) == 0;
        let call = group_call(&errand, need, timeout_ns, cancels);
        let (id, request) = self.shared.ledger().send_out(errand);
        let Ok(message) = self.endpoint.handle().share(&request) else {
            return self.shared.ledger().drop_errand(id);
        };
        self.shared.pending.set(self.shared.pending.get() + 1);
        let company = Company { id, group, message, call, timeout_ns };
        match is_future {
            true => self.call_as_future(company),
            false => self.call_with_continuation(company),
        }
    }

    fn call_as_future(&mut self, company: Company) {
        let (handle, shared) = (self.endpoint.handle(), Rc::clone(&self.shared));
        self.endpoint.handle().spawn(async move {
            let Company { id, group, message, call, timeout_ns } = company;
            shared.begin_errand(id, timeout_ns);
            let GroupCall { method, need, options, late, .. } = call;
            let called = group.call_async(&handle, method, &message, need, options, late);
            let reply = called.await;
            shared.company_ends(id, reply);
        });
    }

    fn call_with_continuation(&mut self, company: Company) {
        let Company { id, group, message, call, timeout_ns } = company;
        let shared = Rc::clone(&self.shared);
        let mut cx = self.endpoint.context();
        shared.begin_errand(id, timeout_ns);
        let ended = Rc::clone(&shared);
        let called = group.call(&mut cx, &message, call, move |_, _, reply| {
            ended.company_ends(id, reply);
        });
        if let Err(failure) = called {
            shared.company_ends(id, Err(failure));
        }
    }
}

impl Shared {
    fn company_ends(&self, id: u32, reply: GroupReply) {
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

fn group_call(errand: &Errand, need: Need, timeout_ns: Option<u64>, cancels: bool) -> GroupCall {
    let mut call = GroupCall::new(errand.work.number(), need);
    call.response_bytes_max = errand.response_len as usize;
    if let Some(timeout_ns) = timeout_ns {
        call.options = CallOptions::new().timeout(Duration::from_nanos(timeout_ns));
    }
    call.late = if cancels { Late::Cancel } else { Late::Finish };
    call
}
