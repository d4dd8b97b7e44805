//! An operator: adds nodes, removes nodes, and hands leadership over.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use petrel_kv::api::{AdminReply, MemberChange, MemberRequest, Refusal, TransferRequest, methods};
use petrel_sim::fabric::HostId;

use crate::common::{address_of, node_of};
use crate::connection::Connection;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperatorRequest {
    Add(HostId),
    Remove(HostId),
    /// Tried once.
    Transfer(HostId),
}

/// Requests that are waiting, running or done.
#[derive(Debug, Default)]
pub(crate) struct OperatorQueue {
    pub(crate) wanted: VecDeque<OperatorRequest>,
    pub(crate) is_busy: bool,
    pub(crate) done: Vec<OperatorRequest>,
}

impl OperatorQueue {
    /// Returns true if no request is waiting, running or done.
    pub(crate) fn is_clear(&self) -> bool {
        self.wanted.is_empty() && !self.is_busy && self.done.is_empty()
    }
}

/// Executes the requests in order, for ever.
pub(crate) async fn operate(mut connection: Connection, queue: Rc<RefCell<OperatorQueue>>) {
    loop {
        connection.pause(2 * connection.common.scenario.tick_ns).await;
        let Some(request) = queue.borrow_mut().wanted.pop_front() else { continue };
        queue.borrow_mut().is_busy = true;
        connection.begin();
        connection.common.fabric.note(format_args!("OPERATOR wants {request:?}"));
        match request {
            OperatorRequest::Add(host) => {
                ask_until_done(&mut connection, MemberChange::Add, host).await
            }
            OperatorRequest::Remove(host) => {
                ask_until_done(&mut connection, MemberChange::Remove, host).await
            }
            OperatorRequest::Transfer(host) => {
                transfer(&mut connection, host).await;
            }
        }
        connection.common.fabric.note(format_args!("OPERATOR has {request:?}"));
        let mut queue = queue.borrow_mut();
        queue.is_busy = false;
        queue.done.push(request);
    }
}

async fn ask_until_done(connection: &mut Connection, change: MemberChange, host: HostId) {
    let address = address_of(host).to_string();
    let request = MemberRequest { change, node: node_of(host), address: &address }.to_vec();
    while !is_done(connection, methods::MEMBER, &request).await {
        // A leader does not remove itself.
        if change == MemberChange::Remove && connection.rng.below(3) == 0 {
            let others = u64::from(connection.common.scenario.replica_hosts());
            let other = HostId(connection.rng.below(others) as u16);
            if other != host {
                transfer(connection, other).await;
            }
        }
    }
}

async fn transfer(connection: &mut Connection, host: HostId) -> bool {
    let request = TransferRequest { node: node_of(host) }.to_vec();
    is_done(connection, methods::TRANSFER, &request).await
}

async fn is_done(connection: &mut Connection, method: u16, request: &[u8]) -> bool {
    let Some(reply) = connection.attempt(method, request).await else { return false };
    match AdminReply::decode(&reply) {
        Ok(AdminReply::Done | AdminReply::NoMember) => true,
        Ok(AdminReply::Refused(refusal)) => {
            if let Refusal::Malformed(what) = refusal {
                connection.common.fail(format!("the operator's request is malformed: {what}"));
            }
            connection.handle_refusal(&refusal).await;
            false
        }
        Err(error) => {
            connection.common.fail(error.to_string());
            false
        }
    }
}
