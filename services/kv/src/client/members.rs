//! The replicas that a client knows.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use petrel::Client;
use petrel::task::Handle;

use super::KvError;
use crate::api::{Role, Status, methods};
use crate::limits::CLIENT_MEMBERS_MAX;

/// The replicas named by the application, and further members.
#[derive(Debug)]
pub(super) struct Members {
    named: Vec<SocketAddr>,
    all: Mutex<Vec<SocketAddr>>,
}

impl Members {
    pub(super) fn new(addresses: impl IntoIterator<Item = SocketAddr>) -> Result<Self, KvError> {
        let mut named = Vec::new();
        for address in addresses {
            if !named.contains(&address) {
                named.push(address);
            }
        }
        if named.is_empty() {
            let text = "a client needs the address of a replica";
            return Err(KvError::InvalidArgument(text.to_owned()));
        }
        Ok(Self { all: Mutex::new(named.clone()), named })
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Learns the members from a replica's status. Only the leader's status removes members, and never the replicas
    /// named by the application. Returns all addresses if they have changed.
    fn learn(&self, status: &Status) -> Option<Vec<SocketAddr>> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let mut now = if status.role == Role::Leader { self.named.clone() } else { all.clone() };
        for member in &status.members {
            if let Ok(address) = member.address.parse()
                && !now.contains(&address)
                && now.len() < CLIENT_MEMBERS_MAX
            {
                now.push(address);
            }
        }
        (*all != now).then(|| {
            all.clone_from(&now);
            now
        })
    }
}

/// Periodically asks for the cluster's members, and has the client keep sessions to all.
pub(super) async fn watch(handle: Handle, client: Client, members: Arc<Members>, every: Duration) {
    loop {
        let status = client.call(methods::STATUS, []).timeout(every).wait_for_ready().await;
        let status = status.ok().and_then(|answer| Status::decode(&answer).ok());
        if let Some(now) = status.and_then(|status| members.learn(&status)) {
            client.set_targets(now).expect("members have addresses, and the service has members");
        }
        handle.sleep(every).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Member, MemberKind};

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    fn status(role: Role, ports: impl IntoIterator<Item = u16>) -> Status {
        let member = |port: u16| Member {
            raft_id: port.into(),
            kind: MemberKind::Voter,
            address: address(port).to_string(),
        };
        Status { role, members: ports.into_iter().map(member).collect(), ..Status::default() }
    }

    #[test]
    fn learn__only_the_leader_has_members_go_and_never_those_that_were_named() {
        let members = Members::new([address(1), address(1)]).unwrap();
        let learn = |role, ports: &[u16]| members.learn(&status(role, ports.iter().copied()));
        let all = |ports: &[u16]| Some(ports.iter().copied().map(address).collect::<Vec<_>>());
        assert_eq!(learn(Role::Follower, &[2, 3]), all(&[1, 2, 3]));
        assert_eq!(learn(Role::Follower, &[3, 4]), all(&[1, 2, 3, 4]));
        assert_eq!(learn(Role::Follower, &[]), None);
        assert_eq!(learn(Role::Leader, &[4, 5]), all(&[1, 4, 5]));
        assert_eq!(members.addresses(), all(&[1, 4, 5]).unwrap());
    }

    #[test]
    fn learn__bounds_what_replicas_can_have_it_connect_to() {
        let members = Members::new([address(1)]).unwrap();
        let now = members.learn(&status(Role::Follower, 2..200)).unwrap();
        assert_eq!(now.len(), CLIENT_MEMBERS_MAX);
    }
}
