//! Real replicas over loopback.

use crate::common::{Cluster, Options, TestClient};

#[test]
fn cluster__writes_can_be_read_and_all_replicas_have_them() {
    let cluster = Cluster::start(3, Options::default());
    let mut client = TestClient::new(cluster.addresses());
    assert_eq!(client.get(b"key"), None);
    let first = client.put(b"key", b"one");
    let second = client.put(b"key", b"two");
    assert!(!first.replaced && second.replaced && second.revision > first.revision);
    assert_eq!(client.get(b"key").as_deref(), Some(&b"two"[..]));
    for number in 0..500u32 {
        client.put(&number.to_be_bytes(), b"value");
    }
    cluster.wait_for_equal_digests();
}

/// A majority has the write, and the leader is not needed for it.
#[test]
fn cluster__writes_while_the_leaders_disk_is_stuck_and_another_takes_over() {
    let cluster = Cluster::start(3, Options { has_disks: true, ..Options::default() });
    let mut client = TestClient::new(cluster.addresses());
    client.put(b"key", b"one");
    let leader = cluster.wait_for_leader();
    cluster.stick(leader);
    let mut writes = 0u32;
    while writes < 100 || cluster.wait_for_leader() == leader {
        client.put(b"key", &writes.to_be_bytes());
        writes += 1;
    }
    assert_eq!(client.get(b"key").as_deref(), Some(&(writes - 1).to_be_bytes()[..]));
}

#[test]
fn cluster__takes_in_a_replica_that_has_lost_everything() {
    let mut cluster = Cluster::start(3, Options { log_entries_max: 200, ..Options::default() });
    let mut client = TestClient::new(cluster.addresses());
    for round in 0..3 {
        let leader = cluster.wait_for_leader();
        let lost = (leader + 1 + round % 2) % 3;
        cluster.kill(lost);
        for number in 0..600u32 {
            client.put(&number.to_be_bytes(), &[round as u8; 100]);
        }
        cluster.restart(lost);
        cluster.wait_for_voters(3, lost);
        cluster.wait_for_equal_digests();
    }
    assert_eq!(client.get(&7u32.to_be_bytes()).as_deref(), Some(&[2; 100][..]));
}

#[test]
fn cluster__leases_answer_what_was_written() {
    let cluster = Cluster::start(3, Options { has_leases: true, ..Options::default() });
    let mut client = TestClient::new(cluster.addresses());
    for number in 0..200u32 {
        client.put(b"key", &number.to_be_bytes());
        assert_eq!(client.get(b"key").as_deref(), Some(&number.to_be_bytes()[..]));
    }
}

/// The old replica counts until the new one has caught up, and then no longer. No membership change enlarges the
/// majority, as adding a fourth voter beside a dead one would.
#[test]
fn cluster__a_lost_node_is_swapped_in_one_step_for_one_at_another_address() {
    let mut cluster = Cluster::start(3, Options::default());
    let mut client = TestClient::new(cluster.addresses());
    client.put(b"key", b"one");
    let lost = (cluster.wait_for_leader() + 1) % 3;
    let before = cluster.addresses()[lost];
    cluster.kill(lost);
    cluster.replace(lost);
    cluster.wait_for_voters(3, lost);
    let leader = cluster.view(cluster.wait_for_leader()).unwrap();
    let members: Vec<_> = leader.status.members.iter().map(|member| &*member.address).collect();
    let [old, new] = [before, cluster.addresses()[lost]].map(|address| address.to_string());
    assert_eq!(members.len(), 3, "{members:?}");
    assert!(members.contains(&&*new) && !members.contains(&&*old), "{members:?}");
    let mut client = TestClient::new(cluster.addresses());
    assert_eq!(client.get(b"key").as_deref(), Some(&b"one"[..]));
    cluster.wait_for_equal_digests();
}
