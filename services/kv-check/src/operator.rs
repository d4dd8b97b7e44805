//! An operator: adds nodes, removes nodes, and hands leadership over.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use petrel_kv::api::{AdminReply, MemberChange, MemberRequest, Refusal, TransferRequest, methods};
use petrel_sim::fabric::HostId;

use crate::common::{address_of, node_of};
use crate::line::Line;

/// An operator's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Add(HostId),
    Remove(HostId),
    /// Tried once.
    Transfer(HostId),
}

/// Requests that are waiting, running or done.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    pub(crate) wanted: VecDeque<Wish>,
    pub(crate) is_busy: bool,
    pub(crate) done: Vec<Wish>,
}

impl Desk {
    /// Returns true if no request is waiting, running or done.
    pub(crate) fn is_clear(&self) -> bool {
        self.wanted.is_empty() && !self.is_busy && self.done.is_empty()
    }
}

/// Executes the requests in order, for ever.
pub(crate) async fn operate(mut line: Line, desk: Rc<RefCell<Desk>>) {
    loop {
        line.pause(2 * line.common.scenario.tick_ns).await;
        let Some(wish) = desk.borrow_mut().wanted.pop_front() else { continue };
        desk.borrow_mut().is_busy = true;
        line.begin();
        line.common.fabric.note(format_args!("OPERATOR wants {wish:?}"));
        match wish {
            Wish::Add(host) => ask_until_done(&mut line, MemberChange::Add, host).await,
            Wish::Remove(host) => ask_until_done(&mut line, MemberChange::Remove, host).await,
            Wish::Transfer(host) => {
                transfer(&mut line, host).await;
            }
        }
        line.common.fabric.note(format_args!("OPERATOR has {wish:?}"));
        let mut desk = desk.borrow_mut();
        desk.is_busy = false;
        desk.done.push(wish);
    }
}

async fn ask_until_done(line: &mut Line, change: MemberChange, host: HostId) {
    let address = address_of(host).to_string();
    let mut request = Vec::new();
    MemberRequest { change, node: node_of(host), address: &address }.encode(&mut request);
    while !is_done(line, methods::MEMBER, &request).await {
        // A leader does not remove itself.
        if change == MemberChange::Remove && line.rng.below(3) == 0 {
            let others = u64::from(line.common.scenario.replica_hosts());
            let other = HostId(line.rng.below(others) as u16);
            if other != host {
                transfer(line, other).await;
            }
        }
    }
}

async fn transfer(line: &mut Line, host: HostId) -> bool {
    let mut request = Vec::new();
    TransferRequest { node: node_of(host) }.encode(&mut request);
    is_done(line, methods::TRANSFER, &request).await
}

async fn is_done(line: &mut Line, method: u16, request: &[u8]) -> bool {
    let Some(reply) = line.attempt(method, request).await else { return false };
    match AdminReply::decode(&reply) {
        Ok(AdminReply::Done | AdminReply::NoMember) => true,
        Ok(AdminReply::Refused(refusal)) => {
            if let Refusal::Malformed(what) = refusal {
                line.common.fail(format!("the operator's request is malformed: {what}"));
            }
            line.heed(&refusal).await;
            false
        }
        Err(error) => {
            line.common.fail(error.to_string());
            false
        }
    }
}
