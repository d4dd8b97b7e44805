//! How a cluster begins, and how a replica without a log finds the one it belongs to.
//!
//! A replica that has nothing has a name that nobody had before. If none of the nodes in its list belongs to a
//! cluster, and all of them have been heard, the lowest of them founds one, of exactly the replicas that it has
//! heard; the others see themselves named there. Only the lowest ever founds, and only while all others say
//! that they belong nowhere, so that what some replica already belongs to is never founded twice. If there is a
//! cluster, a replica that is not named in it asks its leader to be taken in.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::book::node_of;
use super::config::ReplicaConfig;
use super::hello::Hello;

/// What a replica without a log may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Beginning {
    /// Wait.
    None,
    /// Found a cluster of these.
    Found(Vec<(u64, String)>),
    /// Begin as a member, with these as its founders, or without any state.
    Belong { cluster: u64, founders: Option<Vec<(u64, String)>> },
    /// Ask to be taken in.
    Ask { cluster: u64 },
}

pub(super) fn find_beginning(
    config: &ReplicaConfig,
    name: u64,
    heard: &BTreeMap<SocketAddr, Hello>,
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
    found(config, name, heard).map_or(Beginning::None, Beginning::Found)
}

fn found(
    config: &ReplicaConfig,
    name: u64,
    heard: &BTreeMap<SocketAddr, Hello>,
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
    Some(founders)
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

    #[test]
    fn found__by_the_lowest_when_all_were_heard() {
        let name = replica_name(1, 9);
        let mut heard = BTreeMap::from([fresh(2)]);
        assert_eq!(find_beginning(&config(1), name, &heard), Beginning::None);
        heard.extend([fresh(3)]);
        let Beginning::Found(founders) = find_beginning(&config(1), name, &heard) else { panic!() };
        let nodes: Vec<u16> = founders.iter().map(|(replica, _)| node_of(*replica)).collect();
        assert_eq!((nodes, founders[0].0), (vec![1, 2, 3], name));

        let heard = BTreeMap::from([fresh(1), fresh(3)]);
        assert_eq!(find_beginning(&config(2), replica_name(2, 9), &heard), Beginning::None);
    }

    #[test]
    fn found__not_when_somebody_else_is_there() {
        let heard = BTreeMap::from([fresh(2), (at(3), fresh(2).1)]);
        assert_eq!(find_beginning(&config(1), replica_name(1, 9), &heard), Beginning::None);
    }

    #[test]
    fn cluster__who_is_named_belongs_and_others_ask() {
        let name = replica_name(1, 9);
        let named = vec![(name, at(1).to_string())];
        let (address, mut hello) = fresh(2);
        hello.cluster = 77;
        let see = |hello: &Hello| {
            let heard = BTreeMap::from([fresh(3), (address, hello.clone())]);
            find_beginning(&config(1), name, &heard)
        };
        assert_eq!(see(&hello), Beginning::Ask { cluster: 77 });
        hello.members = named.clone();
        assert_eq!(see(&hello), Beginning::Belong { cluster: 77, founders: None });
        hello.founders = named.clone();
        assert_eq!(see(&hello), Beginning::Belong { cluster: 77, founders: Some(named) });
    }
}
