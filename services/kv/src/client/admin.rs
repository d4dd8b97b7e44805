//! Administration: members, leadership, and the state of a replica.

use std::net::SocketAddr;

use petrel::{Client, Execution};

use super::error::not_understood;
use super::judge::UNKNOWN_NAME;
use super::{KvClient, KvError};
use crate::api::{AdminReply, MemberChange, MemberRequest, Status, TransferRequest, methods};

impl KvClient {
    /// Returns the state of the replica at an address, whether or not it is a member.
    ///
    /// # Errors
    /// [`KvError::Unavailable`] if the replica cannot be reached, [`KvError::Timeout`] if it does not answer;
    /// [`KvError::Protocol`] if the server is not a replica.
    pub async fn status(&self, address: SocketAddr) -> Result<Status, KvError> {
        let client = &self.shared.client;
        let asked = async {
            let replica = Client::builder().beside(client).connect(address).await?;
            replica.call(methods::STATUS, []).timeout(self.timeout).await
        };
        let answer = client.timeout(self.timeout, asked).await.flatten();
        let status = answer.and_then(|answer| {
            Status::decode(&answer).map_err(|error| not_understood(Some(error)))
        });
        status.map_err(|failure| {
            let message = format!("{address}: {}", failure.message);
            KvError::of_read(failure.with_message(message))
        })
    }

    /// Adds a node. The node becomes a voter when it has started, joined, and caught up.
    ///
    /// # Errors
    /// [`KvError::Refused`] with the leader's reason; else as [`KvClient::put`].
    pub async fn add_member(&self, node: u16, address: SocketAddr) -> Result<(), KvError> {
        let (change, address) = (MemberChange::Add, &address.to_string());
        let request = MemberRequest { change, node, address };
        self.administer(methods::MEMBER, node, |out| request.encode(out)).await.map(drop)
    }

    /// Removes a node. Returns true if the node was a member. Its process should be ended then.
    ///
    /// # Errors
    /// As [`KvClient::add_member`]: the leader does not remove itself.
    pub async fn remove_member(&self, node: u16) -> Result<bool, KvError> {
        let request = MemberRequest { change: MemberChange::Remove, node, address: "" };
        self.administer(methods::MEMBER, node, |out| request.encode(out)).await
    }

    /// Hands leadership to a node, and waits until the node leads.
    ///
    /// # Errors
    /// [`KvError::Refused`] with the leader's reason: the node is not a voter. [`KvError::Unknown`] if the node does
    /// not lead in time.
    pub async fn transfer(&self, node: u16) -> Result<(), KvError> {
        let request = TransferRequest { node };
        self.administer(methods::TRANSFER, node, |out| request.encode(out)).await.map(drop)
    }

    /// Makes an operator's request about a node. Returns false if there is no such member.
    async fn administer(
        &self,
        method: u16,
        node: u16,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<bool, KvError> {
        if node == 0 {
            return Err(KvError::InvalidArgument("nodes are numbered from 1".to_owned()));
        }
        match self.ask(method, self.deadline(), encode).await {
            Ok(reply) => match AdminReply::decode(&reply) {
                Ok(AdminReply::Done) => Ok(true),
                other => Err(KvError::of_change(not_understood(other.err()))),
            },
            // An earlier copy of the request may have removed the node.
            Err(failure) if failure.status == UNKNOWN_NAME => {
                Ok(failure.execution != Execution::Refused)
            }
            Err(failure) => Err(KvError::of_change(failure)),
        }
    }
}
