//! The members, who leads, and how a replica is.

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

/// How often it is looked whether leadership has been handed over: it takes a round trip or two, once the new
/// leader has the whole log.
const LOOK: Duration = Duration::from_millis(5);

/// After how many such looks the leader is asked again: it gives up after an election timeout.
const LOOKS_MAX: usize = 200;

impl KvClient {
    /// How the replica at an address is, a member or not.
    ///
    /// # Errors
    /// [`KvError::Timeout`] when it cannot be reached; [`KvError::Protocol`] when it is none.
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

    /// Adds a node. It becomes a voter when it has started, joined, and caught up.
    ///
    /// # Errors
    /// [`KvError::Refused`] with what the leader has against it; else as [`KvClient::put`].
    pub async fn add_member(&self, node: u16, address: SocketAddr) -> Result<(), KvError> {
        let address = address.to_string();
        assert!(address.len() <= ADDRESS_BYTES_MAX, "an IP address and a port are short");
        self.change_member(MemberChange::Add, node, &address).await.map(drop)
    }

    /// Removes a node, and tells whether it was a member. It should be ended then.
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

    /// Hands leadership to a node, and waits until it leads.
    ///
    /// # Errors
    /// [`KvError::Refused`] with what the leader has against it: the node is no voter. [`KvError::Unknown`] if it
    /// does not lead in time.
    pub async fn transfer(&self, node: u16) -> Result<(), KvError> {
        check_node(node)?;
        let operation = Operation::new(self);
        let client = self.shared.client.clone();
        loop {
            let request = TransferRequest { node };
            let left = self.within(operation.time_left());
            admin(Operation::new(&left), methods::TRANSFER, |out| request.encode(out)).await?;
            for _ in 0..LOOKS_MAX {
                if self.within(operation.time_left()).leads(node).await {
                    return Ok(());
                }
                if operation.time_left().is_zero() {
                    let last = format!("node {node} was asked to lead, and does not yet");
                    return Err(KvError::Unknown { last });
                }
                let _ = client.spawn(async move |handle| handle.sleep(LOOK).await).await;
            }
        }
    }

    /// Whether a node says that it leads.
    async fn leads(&self, node: u16) -> bool {
        // Only the leader serves this, so that it is known.
        let found = self.get(&[0]).await;
        let options =
            CallOptions::new().timeout(self.timeout.min(self.shared.config.attempt_timeout));
        let answer = self.shared.client.call(methods::STATUS, []).options(options).await;
        let status = answer.ok().and_then(|answer| Status::decode(&answer).ok());
        let is_it = |status: Status| status.node == node && status.role == Role::Leader;
        found.is_ok() && status.is_some_and(is_it)
    }
}

/// Tells whether there was something to do. What operators wish is a state, so that to ask for it twice does no harm.
async fn admin(
    operation: Operation<'_>,
    method: u16,
    encode: impl Fn(&mut Vec<u8>),
) -> Result<bool, KvError> {
    let mut operation = operation.with_effects();
    let answer = operation.ask(method, encode).await?;
    match AdminReply::decode(&answer) {
        Ok(AdminReply::Done) => Ok(true),
        // An earlier copy of the request may have removed it.
        Ok(AdminReply::NoMember) => Ok(operation.is_doubtful()),
        Ok(AdminReply::Refused(Refusal::Unavailable {
            certainty: Certainty::NotApplied,
            reason,
        })) => {
            let last = reason.to_owned();
            // What stands in the way may be an earlier copy of the request.
            Err(match operation.is_doubtful() {
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
