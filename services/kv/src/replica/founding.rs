//! Bootstrap of a cluster, and how a replica without a log finds its cluster.
//!
//! A replica without a log has a name that no replica had before. The lowest node of the list bootstraps a cluster if
//! it has hellos of all nodes and none belongs to a cluster. The cluster consists of exactly the replicas of the
//! hellos; the founder's hello names all of them. Only the lowest node ever bootstraps, and only while all others
//! report no cluster. A replica's existing cluster is therefore never bootstrapped again. If a cluster exists that does
//! not name a replica, the replica asks the leader to join.
//!
//! After the bootstrap, the founder waits for the named replicas. If most of these replicas restart before learning of
//! the cluster, without a log and thus under new names, the founder waits for ever. The founder cannot find out whether
//! the lost replicas were members meanwhile, and admitted others. Bootstrap therefore happens at the last moment: in
//! the answer to the hello that completes a majority of the future members. The majority counts the founder and the
//! replicas that sent hellos under the known names. The founder does not rely on unreachable or departed replicas.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::book::node_of;
use super::config::ReplicaConfig;
use super::hello::Hello;

/// The next step of a replica without a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Beginning {
    /// Wait.
    None,
    /// Bootstrap a cluster of these founders.
    Found(Vec<(u64, String)>),
    /// Start as a member: as a founder, or without any state.
    Belong { cluster: u64, founders: Option<Vec<(u64, String)>> },
    /// Ask to join.
    Ask { cluster: u64 },
}

/// The next step of a replica with the hellos in `heard`. `asked` has, for every node, the sender of the last hello.
pub(super) fn find_beginning(
    config: &ReplicaConfig,
    name: u64,
    heard: &BTreeMap<SocketAddr, Hello>,
    asked: &BTreeMap<u16, u64>,
) -> Beginning {
    let is_named = |list: &[(u64, String)]| list.iter().any(|(replica, _)| *replica == name);
    let clusters = || heard.values().filter(|hello| hello.cluster != 0);
    if let Some(hello) = clusters().find(|hello| is_named(&hello.founders)) {
        let founders = Some(hello.founders.clone());
        return Beginning::Belong { cluster: hello.cluster, founders };
    }
    if let Some(hello) = clusters().find(|hello| is_named(&hello.members)) {
        return Beginning::Belong { cluster: hello.cluster, founders: None };
    }
    if let Some(hello) = clusters().next() {
        return Beginning::Ask { cluster: hello.cluster };
    }
    found(config, name, heard, asked).map_or(Beginning::None, Beginning::Found)
}

fn found(
    config: &ReplicaConfig,
    name: u64,
    heard: &BTreeMap<SocketAddr, Hello>,
    asked: &BTreeMap<u16, u64>,
) -> Option<Vec<(u64, String)>> {
    let is_listed = config.peers.iter().any(|(node, _)| *node == config.node);
    let is_lowest = config.peers.iter().all(|(node, _)| *node >= config.node);
    if !is_listed || !is_lowest {
        return None;
    }
    let mut founders = vec![(name, config.address.to_string())];
    for (node, address) in config.others() {
        let hello = heard.get(&address)?;
        if node_of(hello.replica) != node {
            slog::warn!(config.logger, "another node is at a peer's address";
                "expected" => node, "found" => node_of(hello.replica), "address" => %address);
            return None;
        }
        founders.push((hello.replica, address.to_string()));
    }
    let has_asked =
        |replica: u64| replica == name || asked.get(&node_of(replica)) == Some(&replica);
    let will_know = founders.iter().filter(|(replica, _)| has_asked(*replica)).count();
    (2 * will_know > founders.len()).then_some(founders)
}

#[cfg(test)]
mod tests {
    use super::super::book::replica_name;
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

    fn asked_by(nodes: &[u16]) -> BTreeMap<u16, u64> {
        nodes.iter().map(|node| (*node, fresh(*node).1.replica)).collect()
    }

    #[test]
    fn found__by_the_lowest_when_all_were_heard() {
        let (name, asked) = (replica_name(1, 9), asked_by(&[2, 3]));
        let mut heard = BTreeMap::from([fresh(2)]);
        assert_eq!(find_beginning(&config(1), name, &heard, &asked), Beginning::None);
        heard.extend([fresh(3)]);
        let begins = find_beginning(&config(1), name, &heard, &asked);
        let Beginning::Found(founders) = begins else { panic!("{begins:?}") };
        let nodes: Vec<u16> = founders.iter().map(|(replica, _)| node_of(*replica)).collect();
        assert_eq!((nodes, founders[0].0), (vec![1, 2, 3], name));

        let heard = BTreeMap::from([fresh(1), fresh(3)]);
        let asked = asked_by(&[1, 3]);
        assert_eq!(find_beginning(&config(2), replica_name(2, 9), &heard, &asked), Beginning::None);
    }

    #[test]
    fn found__when_a_majority_has_asked_under_the_names_that_were_heard() {
        let five = |node| {
            let peers = (1..=5).map(|node| (node, at(node))).collect();
            ReplicaConfig::new(node, at(node), peers, 1)
        };
        let (name, heard) = (replica_name(1, 9), (2..=5).map(fresh).collect());
        let founds = |asked: &BTreeMap<u16, u64>| {
            find_beginning(&five(1), name, &heard, asked) != Beginning::None
        };
        assert!(!founds(&asked_by(&[])));
        assert!(!founds(&asked_by(&[2])));
        assert!(founds(&asked_by(&[2, 4])));
        let mut restarted = asked_by(&[2, 4]);
        restarted.insert(4, replica_name(4, 6));
        assert!(!founds(&restarted));
    }

    #[test]
    fn found__not_when_somebody_else_is_there() {
        let heard = BTreeMap::from([fresh(2), (at(3), fresh(2).1)]);
        let asked = asked_by(&[2, 3]);
        assert_eq!(find_beginning(&config(1), replica_name(1, 9), &heard, &asked), Beginning::None);
    }

    #[test]
    fn cluster__who_is_named_belongs_and_others_ask() {
        let name = replica_name(1, 9);
        let named = vec![(name, at(1).to_string())];
        let (address, mut hello) = fresh(2);
        hello.cluster = 77;
        let see = |hello: &Hello| {
            let heard = BTreeMap::from([fresh(3), (address, hello.clone())]);
            find_beginning(&config(1), name, &heard, &asked_by(&[2, 3]))
        };
        assert_eq!(see(&hello), Beginning::Ask { cluster: 77 });
        hello.members = named.clone();
        assert_eq!(see(&hello), Beginning::Belong { cluster: 77, founders: None });
        hello.founders = named.clone();
        assert_eq!(see(&hello), Beginning::Belong { cluster: 77, founders: Some(named) });
    }
}
