//! The members, who leads, and how a replica is.

use std::net::SocketAddr;
use std::time::Duration;

use petrel::endpoint::CallOptions;
use petrel::task::Session;

use super::members::Target;
use super::pursuit::Pursuit;
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
        let deadline_ns = self.deadline_ns();
        let options = CallOptions::new().deadline_ns(deadline_ns);
        if let Some(connection) = self.inner.members.ready(address)
            && let Some(call) = connection.start(methods::STATUS, &[], options)
            && let Ok(reply) = call.await
        {
            return decode_status(address, &reply);
        }
        // A session of its own tells why there is none.
        let timeout = |last: String| KvError::Timeout { last: format!("{address}: {last}") };
        let handle = &self.inner.handle;
        let left = Duration::from_nanos(deadline_ns.saturating_sub(handle.now_ns()));
        let session = match handle.timeout(left, handle.connect(address)).await {
            Ok(Ok(session)) => Closing(session),
            Ok(Err(error)) => return Err(timeout(error.to_string())),
            Err(_) => return Err(timeout("no answer".to_owned())),
        };
        match session.0.call(methods::STATUS, &[]).options(options).await {
            Ok(reply) => decode_status(address, &reply),
            Err(failure) => Err(timeout(failure.to_string())),
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
        if node == 0 {
            return Err(KvError::InvalidArgument("nodes are numbered from 1"));
        }
        let request = MemberRequest { change, node, address };
        self.admin(methods::MEMBER, |out| request.encode(out), self.deadline_ns()).await
    }

    /// Hands leadership to a node, and waits until it leads.
    ///
    /// # Errors
    /// [`KvError::Refused`] with what the leader has against it: the node is no voter. [`KvError::Unknown`] if it
    /// does not lead in time.
    pub async fn transfer(&self, node: u16) -> Result<(), KvError> {
        if node == 0 {
            return Err(KvError::InvalidArgument("nodes are numbered from 1"));
        }
        let deadline_ns = self.deadline_ns();
        let request = TransferRequest { node };
        loop {
            self.admin(methods::TRANSFER, |out| request.encode(out), deadline_ns).await?;
            for _ in 0..LOOKS_MAX {
                if self.leads(node).await {
                    return Ok(());
                }
                if self.inner.handle.now_ns() >= deadline_ns {
                    let last = format!("node {node} was asked to lead, and does not yet");
                    return Err(KvError::Unknown { last });
                }
                self.inner.handle.sleep(LOOK).await;
            }
        }
    }

    /// Whether a node says that it leads.
    async fn leads(&self, node: u16) -> bool {
        let options = CallOptions::new().timeout(self.inner.config.attempt_timeout);
        for address in self.addresses() {
            let connection = self.inner.members.ready(address);
            let call = connection
                .as_ref()
                .and_then(|connection| connection.start(methods::STATUS, &[], options));
            let Some(call) = call else { continue };
            let Ok(reply) = call.await else { continue };
            let is_it = |status: Status| status.node == node && status.role == Role::Leader;
            if Status::decode(&reply).is_ok_and(is_it) {
                connection.iter().for_each(|connection| self.inner.members.confirm(connection));
                return true;
            }
        }
        false
    }

    /// Tells whether there was something to do.
    async fn admin(
        &self,
        method: u16,
        encode: impl Fn(&mut Vec<u8>),
        deadline_ns: u64,
    ) -> Result<bool, KvError> {
        // What operators wish is a state, so that to ask for it twice does no harm.
        let mut pursuit = Pursuit::new(&self.inner, Target::Leader, deadline_ns).with_effects();
        loop {
            let (reply, from) = pursuit.ask(method, &encode).await?;
            match AdminReply::decode(&reply) {
                Ok(AdminReply::Done) => {
                    pursuit.confirm(&from);
                    return Ok(true);
                }
                Ok(AdminReply::NoMember) => {
                    pursuit.confirm(&from);
                    // An earlier copy of the request may have removed it.
                    return Ok(pursuit.is_doubtful());
                }
                Ok(AdminReply::Refused(Refusal::Unavailable {
                    certainty: Certainty::NotApplied,
                    reason,
                })) => {
                    let last = reason.to_owned();
                    // What stands in the way may be an earlier copy of the request.
                    let is_doubtful = pursuit.is_doubtful();
                    return Err(match is_doubtful {
                        true => KvError::Unknown { last },
                        false => KvError::Refused(last),
                    });
                }
                Ok(AdminReply::Refused(refusal)) => pursuit.refused(&from, refusal)?,
                Err(error) => return Err(pursuit.not_understood(&from, &error)),
            }
        }
    }
}

/// Closes a session that is for one call.
struct Closing(Session);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn decode_status(address: SocketAddr, reply: &[u8]) -> Result<Status, KvError> {
    Status::decode(reply)
        .map_err(|error| KvError::Protocol(format!("{address} is no replica: {error}")))
}
