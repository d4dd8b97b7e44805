//! Bootstrap of a cluster, and how a replica without a log finds its cluster.
//!
//! A replica without a log has a name that no replica had before. The lowest node of the list bootstraps a cluster if
//! it has hellos of all nodes and none belongs to a cluster. The initial members are exactly the replicas of the
//! hellos; the lowest node's hello names all of them. Only the lowest node ever bootstraps, and only while all others
//! report no cluster. A replica's existing cluster is therefore never bootstrapped again. If a cluster exists that does
//! not name a replica, the replica asks the leader to join.
//!
//! After the bootstrap, the lowest node waits for the named replicas. If most of these replicas restart before learning
//! of the cluster, without a log and thus under new names, the lowest node waits for ever. The lowest node cannot find
//! out whether the lost replicas were members meanwhile, and admitted further members. Bootstrap therefore happens at
//! the last moment: in the answer to the hello that completes a majority of the initial members. The majority counts
//! the lowest node and the replicas that sent hellos under the known names. The lowest node does not rely on
//! unreachable or departed replicas.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::config::ReplicaConfig;
use super::hello::Hello;
use super::membership::{Members, node_of};

/// The next step of a replica without a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BootstrapStep {
    Wait,
    /// Bootstrap a cluster with these initial members.
    Bootstrap(Members),
    /// Start as a member: as an initial member, or without any state.
    Start {
        cluster: u64,
        initial_members: Option<Members>,
    },
    /// Ask the leader to join.
    RequestJoin {
        cluster: u64,
    },
}

/// The next step of a replica. `hellos` has the answers to this replica's own hellos, by address. `hellos_received` has
/// the sender of the last hello of every node.
pub(super) fn next_step(
    config: &ReplicaConfig,
    name: u64,
    hellos: &BTreeMap<SocketAddr, Hello>,
    hellos_received: &BTreeMap<u16, u64>,
) -> BootstrapStep {
    let clusters = || hellos.values().filter(|hello| hello.cluster != 0);
    if let Some(hello) = clusters().find(|hello| hello.initial_members.contains_key(&name)) {
        let initial_members = Some(hello.initial_members.clone());
        return BootstrapStep::Start { cluster: hello.cluster, initial_members };
    }
    if let Some(hello) = clusters().find(|hello| hello.members.contains_key(&name)) {
        return BootstrapStep::Start { cluster: hello.cluster, initial_members: None };
    }
    if let Some(hello) = clusters().next() {
        return BootstrapStep::RequestJoin { cluster: hello.cluster };
    }
    bootstrap_members(config, name, hellos, hellos_received)
        .map_or(BootstrapStep::Wait, BootstrapStep::Bootstrap)
}

/// The initial members, if this replica may bootstrap a cluster now.
fn bootstrap_members(
    config: &ReplicaConfig,
    name: u64,
    hellos: &BTreeMap<SocketAddr, Hello>,
    hellos_received: &BTreeMap<u16, u64>,
) -> Option<Members> {
    let is_listed = config.peers.iter().any(|(node, _)| *node == config.node);
    let is_lowest = config.peers.iter().all(|(node, _)| *node >= config.node);
    if !is_listed || !is_lowest {
        return None;
    }
    let mut initial_members = Members::from([(name, config.address.to_string())]);
    for (node, address) in config.others() {
        let hello = hellos.get(&address)?;
        if node_of(hello.replica) != node {
            slog::warn!(config.logger, "another node is at a peer's address";
                "expected" => node, "found" => node_of(hello.replica), "address" => %address);
            return None;
        }
        initial_members.insert(hello.replica, address.to_string());
    }
    let has_sent_hello =
        |replica: u64| replica == name || hellos_received.get(&node_of(replica)) == Some(&replica);
    let will_know = initial_members.keys().filter(|replica| has_sent_hello(**replica)).count();
    (2 * will_know > initial_members.len()).then_some(initial_members)
}

#[cfg(test)]
mod tests {
    use super::super::membership::replica_name;
    use super::*;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn config(node: u16) -> ReplicaConfig {
        let peers = (1..=3).map(|node| (node, at(node))).collect();
        ReplicaConfig::new(node, at(node), peers, 1)
    }

    fn fresh(node: u16) -> (SocketAddr, Hello) {
        (at(node), Hello { replica: replica_name(node, 5), ..Hello::default() })
    }

    fn received_from(nodes: &[u16]) -> BTreeMap<u16, u64> {
        nodes.iter().map(|node| (*node, fresh(*node).1.replica)).collect()
    }

    #[test]
    fn next_step__the_lowest_node_bootstraps_with_hellos_of_all() {
        let (name, hellos_received) = (replica_name(1, 9), received_from(&[2, 3]));
        let mut hellos = BTreeMap::from([fresh(2)]);
        assert_eq!(next_step(&config(1), name, &hellos, &hellos_received), BootstrapStep::Wait);
        hellos.extend([fresh(3)]);
        let step = next_step(&config(1), name, &hellos, &hellos_received);
        let BootstrapStep::Bootstrap(initial_members) = step else { panic!("{step:?}") };
        assert!(initial_members.keys().map(|replica| node_of(*replica)).eq([1, 2, 3]));
        assert!(initial_members.contains_key(&name));

        let hellos = BTreeMap::from([fresh(1), fresh(3)]);
        let hellos_received = received_from(&[1, 3]);
        assert_eq!(
            next_step(&config(2), replica_name(2, 9), &hellos, &hellos_received),
            BootstrapStep::Wait
        );
    }

    #[test]
    fn next_step__bootstraps_when_a_majority_has_sent_hellos_under_the_known_names() {
        let five = |node| {
            let peers = (1..=5).map(|node| (node, at(node))).collect();
            ReplicaConfig::new(node, at(node), peers, 1)
        };
        let (name, hellos) = (replica_name(1, 9), (2..=5).map(fresh).collect());
        let bootstraps = |hellos_received: &BTreeMap<u16, u64>| {
            next_step(&five(1), name, &hellos, hellos_received) != BootstrapStep::Wait
        };
        assert!(!bootstraps(&received_from(&[])));
        assert!(!bootstraps(&received_from(&[2])));
        assert!(bootstraps(&received_from(&[2, 4])));
        let mut restarted = received_from(&[2, 4]);
        restarted.insert(4, replica_name(4, 6));
        assert!(!bootstraps(&restarted));
    }

    #[test]
    fn next_step__does_not_bootstrap_with_another_node_at_an_address() {
        let hellos = BTreeMap::from([fresh(2), (at(3), fresh(2).1)]);
        let hellos_received = received_from(&[2, 3]);
        assert_eq!(
            next_step(&config(1), replica_name(1, 9), &hellos, &hellos_received),
            BootstrapStep::Wait
        );
    }

    #[test]
    fn next_step__a_named_replica_starts_and_others_ask_to_join() {
        let name = replica_name(1, 9);
        let named = Members::from([(name, at(1).to_string())]);
        let (address, mut hello) = fresh(2);
        hello.cluster = 77;
        let see = |hello: &Hello| {
            let hellos = BTreeMap::from([fresh(3), (address, hello.clone())]);
            next_step(&config(1), name, &hellos, &received_from(&[2, 3]))
        };
        assert_eq!(see(&hello), BootstrapStep::RequestJoin { cluster: 77 });
        hello.members = named.clone();
        assert_eq!(see(&hello), BootstrapStep::Start { cluster: 77, initial_members: None });
        hello.initial_members = named.clone();
        assert_eq!(see(&hello), BootstrapStep::Start { cluster: 77, initial_members: Some(named) });
    }
}
