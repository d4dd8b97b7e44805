//! Administration: members, leadership, and the state of a replica.

use std::net::SocketAddr;
use std::time::Duration;

use petrel::Client;
use petrel::endpoint::CallOptions;

use super::operation::Operation;
use super::{KvClient, KvError};
use crate::api::{
    AdminReply, Certainty, MemberChange, MemberRequest, Refusal, Role, Status, TransferRequest,
    methods,
};
use crate::limits::ADDRESS_BYTES_MAX;

/// Interval of the checks whether a handover of leadership succeeded. A handover takes a round trip or two once the new
/// leader has the whole log.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Number of checks after which the leader is asked again, because a leader gives up after an election timeout.
const POLLS_MAX: usize = 200;

impl KvClient {
    /// Returns the state of the replica at an address, whether or not it is a member.
    ///
    /// # Errors
    /// [`KvError::Timeout`] if the replica cannot be reached; [`KvError::Protocol`] if the server is not a replica.
    pub async fn status(&self, address: SocketAddr) -> Result<Status, KvError> {
        let client = &self.shared.client;
        let asked = async {
            let replica = Client::builder().beside(client).connect(address).await?;
            replica.call(methods::STATUS, []).timeout(self.timeout).await
        };
        let timeout = |last: &str| KvError::Timeout { last: format!("{address}: {last}") };
        match client.timeout(self.timeout, asked).await {
            Ok(Ok(answer)) => Status::decode(&answer)
                .map_err(|error| KvError::Protocol(format!("{address} is no replica: {error}"))),
            Ok(Err(failure)) => Err(timeout(&failure.message)),
            Err(_) => Err(timeout("no answer")),
        }
    }

    /// Adds a node. The node becomes a voter when it has started, joined, and caught up.
    ///
    /// # Errors
    /// [`KvError::Refused`] with the leader's reason; else as [`KvClient::put`].
    pub async fn add_member(&self, node: u16, address: SocketAddr) -> Result<(), KvError> {
        let address = address.to_string();
        assert!(address.len() <= ADDRESS_BYTES_MAX, "an IP address and a port are short");
        self.change_member(MemberChange::Add, node, &address).await.map(drop)
    }

    /// Removes a node. Returns true if the node was a member. Its process should be ended then.
    ///
    /// # Errors
    /// As [`KvClient::add_member`]: the leader does not remove itself.
    pub async fn remove_member(&self, node: u16) -> Result<bool, KvError> {
        self.change_member(MemberChange::Remove, node, "").await
    }

    async fn change_member(
        &self,
        change: MemberChange,
        node: u16,
        address: &str,
    ) -> Result<bool, KvError> {
        check_node(node)?;
        let request = MemberRequest { change, node, address };
        admin(Operation::new(self), methods::MEMBER, |out| request.encode(out)).await
    }

    /// Hands leadership to a node, and waits until the node leads.
    ///
    /// # Errors
    /// [`KvError::Refused`] with the leader's reason: the node is not a voter. [`KvError::Unknown`] if the node does
    /// not lead in time.
    pub async fn transfer(&self, node: u16) -> Result<(), KvError> {
        check_node(node)?;
        let operation = Operation::new(self);
        let client = self.shared.client.clone();
        loop {
            let request = TransferRequest { node };
            let left = self.within(operation.time_left());
            admin(Operation::new(&left), methods::TRANSFER, |out| request.encode(out)).await?;
            for _ in 0..POLLS_MAX {
                if self.within(operation.time_left()).leads(node).await {
                    return Ok(());
                }
                if operation.time_left().is_zero() {
                    let last = format!("node {node} was asked to lead, and does not yet");
                    return Err(KvError::Unknown { last });
                }
                let _ = client.spawn(async move |handle| handle.sleep(POLL_INTERVAL).await).await;
            }
        }
    }

    /// Returns true if a node reports to be the leader.
    async fn leads(&self, node: u16) -> bool {
        // Only the leader serves this read, and the client below thereby learns the leader.
        let found = self.get(&[0]).await;
        let options =
            CallOptions::new().timeout(self.timeout.min(self.shared.config.attempt_timeout));
        let answer = self.shared.client.call(methods::STATUS, []).options(options).await;
        let status = answer.ok().and_then(|answer| Status::decode(&answer).ok());
        let is_it = |status: Status| status.node == node && status.role == Role::Leader;
        found.is_ok() && status.is_some_and(is_it)
    }
}

/// Sends an operator's request. Returns true if it caused a change. A request names a state, and may therefore be
/// executed twice without harm.
async fn admin(
    operation: Operation<'_>,
    method: u16,
    encode: impl Fn(&mut Vec<u8>),
) -> Result<bool, KvError> {
    let mut operation = operation.with_effects();
    let answer = operation.ask(method, encode).await?;
    match AdminReply::decode(&answer) {
        Ok(AdminReply::Done) => Ok(true),
        // An earlier copy of the request may have removed the node.
        Ok(AdminReply::NoMember) => Ok(operation.may_have_executed()),
        Ok(AdminReply::Refused(Refusal::Unavailable {
            certainty: Certainty::NotApplied,
            reason,
        })) => {
            let last = reason.to_owned();
            // The obstacle may be an earlier copy of the request.
            Err(match operation.may_have_executed() {
                true => KvError::Unknown { last },
                false => KvError::Refused(last),
            })
        }
        Ok(AdminReply::Refused(refusal)) => Err(operation.refused(refusal)),
        Err(error) => Err(operation.not_understood(&error)),
    }
}

fn check_node(node: u16) -> Result<(), KvError> {
    if node == 0 {
        return Err(KvError::InvalidArgument("nodes are numbered from 1"));
    }
    Ok(())
}
