//! Hosts: network namespaces joined by a bridge. The run itself, with the clients, is on the bridge.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use petrel_netns::{Error, Host, bring_up, ip, nft};

/// Most hosts of replicas.
pub(super) const HOSTS: u16 = 5;

/// The number of the run itself, in rules.
pub(super) const CLIENTS: u16 = 254;

const PORT: u16 = 7000;
const TABLE: &str = "petrel";

pub(super) fn address_of(node: u16) -> SocketAddr {
    (host(node), PORT).into()
}

fn host(node: u16) -> Ipv4Addr {
    Ipv4Addr::new(10, 98, 0, node as u8)
}

/// A packet rule, for the time of a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Drops all packets from `from` to `to`, and in the reverse direction unless `one_way`.
    Cut { from: Vec<u16>, to: Vec<u16>, one_way: bool },
    /// Drops this percentage of the packets to and from a node.
    Loss { node: u16, percent: u8 },
}

pub(super) struct Network {
    hosts: Vec<Host>,
}

impl Network {
    pub(super) fn make(hosts: u16) -> Result<Self, Error> {
        ip("link set lo up")?;
        ip("link add br0 type bridge")?;
        bring_up("br0", host(CLIENTS))?;
        let hosts = (1..=hosts).map(add_host).collect::<Result<_, _>>()?;
        Ok(Self { hosts })
    }

    /// A command that runs a program on a node's host.
    pub(super) fn on(&self, node: u16, program: &Path) -> Command {
        self.hosts[usize::from(node) - 1].command(program)
    }

    pub(super) fn set_link(&self, node: u16, is_up: bool) -> Result<(), Error> {
        ip(&format!("link set v{node} {}", if is_up { "up" } else { "down" }))
    }

    /// Sets all links up, and removes all rules.
    pub(super) fn heal(&self, nodes: u16) -> Result<(), Error> {
        self.set_rules(&[])?;
        (1..=nodes).try_for_each(|node| self.set_link(node, true))
    }

    /// Replaces all rules atomically.
    pub(super) fn set_rules(&self, rules: &[Rule]) -> Result<(), Error> {
        let lines: String = rules.iter().flat_map(lines).collect();
        let mut script = format!("add table bridge {TABLE}\ndelete table bridge {TABLE}\n");
        script += &format!("table bridge {TABLE} {{\n");
        // Packets from hosts enter at the bridge; packets from clients originate there.
        for hook in ["prerouting", "output"] {
            script += &format!("chain {hook} {{\ntype filter hook {hook} priority 0;\n{lines}}}\n");
        }
        script += "}\n";
        nft(&script)
    }
}

/// Creates a node's host at the bridge.
fn add_host(node: u16) -> Result<Host, Error> {
    let made = Host::new()?;
    made.join(&format!("v{node}"), "e0")?;
    ip(&format!("link set v{node} master br0 up"))?;
    made.bring_up("e0", host(node))?;
    Ok(made)
}

fn lines(rule: &Rule) -> Vec<String> {
    match rule {
        Rule::Cut { from, to, one_way } => {
            let set = |nodes: &[u16]| {
                nodes.iter().map(|node| host(*node).to_string()).collect::<Vec<_>>().join(", ")
            };
            let cut = |from, to| {
                format!("ip saddr {{ {} }} ip daddr {{ {} }} drop\n", set(from), set(to))
            };
            let mut lines = vec![cut(from, to)];
            lines.extend((!one_way).then(|| cut(to, from)));
            lines
        }
        Rule::Loss { node, percent } => ["saddr", "daddr"]
            .map(|end| format!("ip {end} {} numgen random mod 100 < {percent} drop\n", host(*node)))
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::chaos::namespaces;

    /// Few enough for a socket's buffer.
    const DATAGRAMS: usize = 100;

    const TEST: &str = "chaos::network::tests::set_rules__cut_what_they_name_and_nothing_else";

    /// Opens a socket on a host. The socket outlives its thread.
    fn socket(network: &Network, node: u16) -> UdpSocket {
        let open = move || UdpSocket::bind((host(node), PORT)).unwrap();
        match network.hosts.get(usize::from(node) - 1) {
            Some(host) => host.spawn(open).join().unwrap(),
            None => open(),
        }
    }

    /// Counts the datagrams that arrive under the rules. A last datagram without rules marks the end.
    fn count(network: &Network, rules: &[Rule], from: &UdpSocket, to: &UdpSocket) -> usize {
        let address = to.local_addr().unwrap();
        network.set_rules(rules).unwrap();
        for _ in 0..DATAGRAMS {
            // If the sender is on the bridge, the kernel reports the loss to it.
            let _ = from.send_to(b"one", address);
        }
        network.set_rules(&[]).unwrap();
        from.send_to(b"last", address).unwrap();
        let mut buffer = [0; 8];
        let mut receive = || to.recv(&mut buffer).map(|len| buffer[..len] == *b"one").unwrap();
        std::iter::repeat_with(&mut receive).take_while(|is_one| *is_one).count()
    }

    #[test]
    fn set_rules__cut_what_they_name_and_nothing_else() {
        if !namespaces::is_inside() {
            return match namespaces::test_inside(TEST) {
                Ok(said) => assert!(said.contains("1 passed"), "{said}"),
                Err(why) => petrel_skip::skip(petrel_skip::Need::Namespaces, why),
            };
        }
        let network = Network::make(2).unwrap();
        let [one, two, clients] = [1, 2, CLIENTS].map(|node| socket(&network, node));
        let cut = |from: u16, to: u16, one_way| {
            vec![Rule::Cut { from: vec![from], to: vec![to, 77], one_way }]
        };
        let check = |rules: &[Rule], expected: [bool; 4]| {
            let pairs = [(&one, &two), (&two, &one), (&one, &clients), (&clients, &one)];
            let found = pairs.map(|(from, to)| count(&network, rules, from, to));
            assert_eq!(found, expected.map(|all| if all { DATAGRAMS } else { 0 }), "{rules:?}");
        };
        check(&[], [true, true, true, true]);
        check(&cut(1, 2, false), [false, false, true, true]);
        check(&cut(1, 2, true), [false, true, true, true]);
        check(&cut(2, 1, true), [true, false, true, true]);
        check(&cut(CLIENTS, 1, true), [true, true, true, false]);
        check(&cut(CLIENTS, 1, false), [true, true, false, false]);
        check(&[cut(1, 2, true), cut(1, CLIENTS, true)].concat(), [false, true, false, true]);
        let loss = [Rule::Loss { node: 2, percent: 50 }];
        for (from, to) in [(&one, &two), (&two, &one)] {
            // Six standard deviations to either side.
            assert!((20..80).contains(&count(&network, &loss, from, to)));
        }
        assert_eq!(count(&network, &loss, &one, &clients), DATAGRAMS);
    }
}
