//! The record of calls and fault windows of a multicast world.

use std::collections::BTreeMap;

use petrel::endpoint::SessionId;
use petrel::group::{GroupReply, Member, MemberOutcome};
use petrel::{Execution, MsgBuf, Status};

use crate::check::fault_window::FaultWindows;
use crate::check::pattern;
use crate::fabric::HostId;

/// Bytes of a request that hold the call number.
const ID_BYTES: usize = 4;

/// Calls and executions, and the first violation.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) now_ns: u64,
    calls: Vec<Call>,
    pub(super) fault_windows: FaultWindows,
    pub(super) violation: Option<String>,
    pub(super) succeeded: u64,
}

#[derive(Debug)]
struct Call {
    members: Vec<(SessionId, HostId)>,
    needed: usize,
    has_deadline: bool,
    issued_ns: u64,
    is_over: bool,
    executions: BTreeMap<HostId, u32>,
    /// Members that are known not to have executed the call.
    must_not_execute: Vec<HostId>,
}

impl Ledger {
    pub(super) fn call_count(&self) -> u64 {
        self.calls.len() as u64
    }

    /// Records a call. Returns its number.
    pub(super) fn issue(
        &mut self,
        members: Vec<(SessionId, HostId)>,
        needed: usize,
        has_deadline: bool,
    ) -> u32 {
        self.calls.push(Call {
            members,
            needed,
            has_deadline,
            issued_ns: self.now_ns,
            is_over: false,
            executions: BTreeMap::new(),
            must_not_execute: Vec::new(),
        });
        self.calls.len() as u32 - 1
    }

    /// Returns the number of calls that have not ended.
    pub(super) fn pending(&self) -> usize {
        self.calls.iter().filter(|call| !call.is_over).count()
    }

    /// Checks a handler's run. Returns the seed of the answer.
    pub(super) fn execute(&mut self, host: HostId, request: &[u8]) -> Option<u64> {
        let Some(id) = number_of(request) else {
            self.violate(format!("{host} was given {} bytes of no call", request.len()));
            return None;
        };
        let Some(call) = self.calls.get_mut(id as usize) else {
            self.violate(format!("{host} was given call {id}, which nobody has made"));
            return None;
        };
        let count = call.executions.entry(host).or_default();
        *count += 1;
        let (is_again, is_member) =
            (*count > 1, call.members.iter().any(|&(_, member)| member == host));
        let is_excluded = call.must_not_execute.contains(&host);
        if is_again || !is_member || is_excluded {
            self.violate(format!(
                "{host} runs call {id}: again: {is_again}, member: {is_member}, said not to: {is_excluded}"
            ));
        }
        Some(answer_seed(id, host))
    }

    pub(super) fn end(&mut self, id: u32, reply: &GroupReply) {
        let Some(call) = self.calls.get_mut(id as usize) else { return };
        let was_over = std::mem::replace(&mut call.is_over, true);
        let (is_ok, members) = match reply {
            Ok(members) => (true, members),
            Err(failure) => (false, &failure.members),
        };
        let result = match was_over {
            true => Err("ends twice".to_owned()),
            false => self.check_end(id, is_ok, members),
        };
        self.succeeded += u64::from(is_ok);
        if let Err(what) = result {
            self.violate(format!("call {id} {what}"));
        }
    }

    fn check_end(
        &mut self,
        id: u32,
        is_ok: bool,
        members: &[Member<MsgBuf>],
    ) -> Result<(), String> {
        let now_ns = self.now_ns;
        let Self { calls, fault_windows, .. } = self;
        let call = &mut calls[id as usize];
        let (mut answered, mut failed, mut unjustified) = (0, 0, None);
        for (member, &(session, host)) in members.iter().zip(&call.members) {
            if member.id != session {
                return Err(format!("has another member than {host} in its place"));
            }
            let executed = call.executions.get(&host).copied().unwrap_or(0);
            match &member.outcome {
                MemberOutcome::Pending => {}
                MemberOutcome::Answered(answer) => {
                    answered += 1;
                    if executed != 1 || !pattern::is_filled(answer_seed(id, host), answer) {
                        return Err(format!(
                            "has a wrong answer of {host}, which ran it {executed} times"
                        ));
                    }
                }
                MemberOutcome::Failed(failure) => {
                    failed += 1;
                    let is_sure =
                        matches!(failure.execution, Execution::NotSent | Execution::Refused);
                    if is_sure && executed > 0 {
                        return Err(format!("was executed by {host}, which is said not to have"));
                    }
                    call.must_not_execute.extend(is_sure.then_some(host));
                    let is_late = call.has_deadline && failure.status == Status::DeadlineExceeded;
                    let is_in_window = fault_windows.justify([host; 2], call.issued_ns, now_ns);
                    if !is_late && !is_in_window {
                        unjustified =
                            Some(format!("failed at {host} without a reason: {failure:?}"));
                    }
                }
            }
        }
        let (count, needed) = (call.members.len(), call.needed);
        if is_ok != (answered >= needed) || (!is_ok && count - failed >= needed) {
            return Err(format!(
                "ends with {is_ok}: {answered} of {count} answered, {failed} failed, {needed} needed"
            ));
        }
        unjustified.map_or(Ok(()), Err)
    }

    pub(super) fn violate(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }
}

/// Returns the seed of a member's answer.
fn answer_seed(id: u32, host: HostId) -> u64 {
    (u64::from(id) << 16 | u64::from(host.0)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8
}

/// Returns the bytes of a call's request.
pub(super) fn request_of(id: u32, len: usize) -> Vec<u8> {
    let mut request = vec![0; len.max(ID_BYTES)];
    let (head, rest) = request.split_at_mut(ID_BYTES);
    head.copy_from_slice(&id.to_le_bytes());
    pattern::fill(u64::from(id), rest);
    request
}

/// Returns the call number of a request, if every byte is intact.
fn number_of(request: &[u8]) -> Option<u32> {
    let (head, rest) = request.split_first_chunk::<ID_BYTES>()?;
    let id = u32::from_le_bytes(*head);
    pattern::is_filled(u64::from(id), rest).then_some(id)
}
