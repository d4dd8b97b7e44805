//! The state of a cluster, from outside, and its recovery.

use std::time::{Duration, Instant};

use petrel::task::Handle;
use petrel_kv::KvClient;
use petrel_kv::api::{Member, MemberKind, Role, Status};

use super::cluster::Cluster;
use super::network::address_of;

/// Timeout for a healed cluster to serve again, and to recover: generous, for machines with other load.
pub(super) const RECOVERY_MAX: Duration = Duration::from_secs(60);

const STATUS_TIMEOUT: Duration = Duration::from_millis(300);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The statuses of the running replicas that answer.
pub(super) async fn statuses(client: &KvClient, cluster: &Cluster<'_>) -> Vec<Status> {
    let mut statuses = Vec::new();
    for node in 1..=cluster.settings.nodes {
        if cluster.is_running(node) {
            statuses.extend(client.within(STATUS_TIMEOUT).status(address_of(node)).await);
        }
    }
    statuses
}

pub(super) fn leader(statuses: &[Status]) -> Option<&Status> {
    let leaders = statuses.iter().filter(|status| status.role == Role::Leader);
    leaders.max_by_key(|status| status.term)
}

/// Returns true if the leader reports that a node's present replica votes.
pub(super) fn votes(statuses: &[Status], node: u16) -> bool {
    let own = statuses.iter().find(|status| status.node == node);
    let (Some(own), Some(leader)) = (own, leader(statuses)) else { return false };
    let is_it = |member: &Member| member.raft_id == own.raft_id && member.kind == MemberKind::Voter;
    own.raft_id != 0 && leader.members.iter().any(is_it)
}

/// Waits until a write is answered.
pub(super) async fn wait_until_it_serves(client: &KvClient) -> Result<(), String> {
    let put = client.within(RECOVERY_MAX).put(b"healed", b"").await;
    put.map(|_| ()).map_err(|error| format!("it does not serve {RECOVERY_MAX:?} after: {error}"))
}

/// Waits until all replicas vote and have the same state.
pub(super) async fn wait_until_recovered(
    cluster: &mut Cluster<'_>,
    client: &KvClient,
    handle: &Handle,
) -> Result<(), String> {
    let end = Instant::now() + RECOVERY_MAX;
    let nodes = cluster.settings.nodes;
    loop {
        if let Some(what) = cluster.ended() {
            return Err(what);
        }
        let statuses = statuses(client, cluster).await;
        let digests: Vec<_> = (1..=nodes).map(|node| cluster.digest(node)).collect();
        let all_equal = are_equal(&digests)?;
        if all_equal && (1..=nodes).all(|node| votes(&statuses, node)) {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(format!(
                "it has not recovered {RECOVERY_MAX:?} after: {digests:?} {statuses:?}"
            ));
        }
        handle.sleep(POLL_INTERVAL).await;
    }
}

/// Returns true if all replicas have applied the same index.
///
/// # Errors
/// The digests, if the states at this index differ.
fn are_equal(digests: &[Option<(u64, u64)>]) -> Result<bool, String> {
    let at = |index: &Option<(u64, u64)>| index.map(|(index, _)| index).filter(|index| *index > 0);
    let mut indices = digests.iter().map(at);
    let first = indices.next().flatten();
    if first.is_none() || indices.any(|index| index != first) {
        return Ok(false);
    }
    if digests.iter().any(|digest| *digest != digests[0]) {
        return Err(format!("replicas have different states at one index: {digests:?}"));
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(node: u16, role: Role, term: u64, voters: &[u64]) -> Status {
        let member = |raft_id: &u64| Member {
            raft_id: *raft_id,
            kind: MemberKind::Voter,
            address: String::new(),
        };
        let members = voters.iter().map(member).collect();
        Status { node, raft_id: u64::from(node) * 10, role, term, members, ..Status::default() }
    }

    #[test]
    fn votes__is_what_the_latest_leader_says() {
        let statuses = [
            status(1, Role::Leader, 3, &[10, 20, 30]),
            status(2, Role::Leader, 4, &[10, 20, 31]),
            status(3, Role::Follower, 4, &[10, 20, 30]),
        ];
        assert_eq!(leader(&statuses).map(|status| status.node), Some(2));
        assert_eq!([1, 2, 3, 4].map(|node| votes(&statuses, node)), [true, true, false, false]);
        assert!(!votes(&statuses[2..], 3));
    }

    #[test]
    fn are_equal__at_one_index_only() {
        assert_eq!(are_equal(&[Some((7, 1)), Some((7, 1))]), Ok(true));
        assert_eq!(are_equal(&[Some((7, 1)), Some((6, 2))]), Ok(false));
        assert_eq!(are_equal(&[Some((7, 1)), None]), Ok(false));
        assert_eq!(are_equal(&[Some((0, 1)), Some((0, 1))]), Ok(false));
        assert!(are_equal(&[Some((7, 1)), Some((7, 2))]).is_err());
    }
}
