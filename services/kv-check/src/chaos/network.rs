//! Hosts: network namespaces joined by a bridge. The run itself, with the clients, is on the bridge.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};

/// Most hosts of replicas.
pub(super) const HOSTS: u16 = 5;

/// The number of the run itself, in rules.
pub(super) const CLIENTS: u16 = 254;

const PORT: u16 = 7000;
const TABLE: &str = "petrel";

/// The address of a node.
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
    /// Processes that hold the namespaces open.
    holders: Vec<Child>,
}

impl Network {
    /// Creates this number of hosts.
    pub(super) fn make(hosts: u16) -> Result<Self, String> {
        ip("link set lo up")?;
        ip("link add br0 type bridge")?;
        ip(&format!("address add {}/24 dev br0", host(CLIENTS)))?;
        ip("link set br0 up")?;
        let mut network = Self { holders: Vec::new() };
        for node in 1..=hosts {
            network.add_host(node)?;
        }
        Ok(network)
    }

    fn add_host(&mut self, node: u16) -> Result<(), String> {
        // The process writes a line from within the namespace.
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo in; exec sleep infinity"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut byte = [0];
        let output = holder.stdout.as_mut().expect("it is piped");
        std::io::Read::read_exact(output, &mut byte).map_err(|error| error.to_string())?;
        let id = holder.id();
        self.holders.push(holder);
        ip(&format!("link add v{node} type veth peer name e0 netns {id}"))?;
        ip(&format!("link set v{node} master br0 up"))?;
        let inside = |what: String| {
            let words = format!("--target {id} --net ip {what}");
            tool("nsenter", &words.split(' ').collect::<Vec<_>>(), "")
        };
        inside("link set lo up".to_owned())?;
        inside(format!("address add {}/24 dev e0", host(node)))?;
        inside("link set e0 up".to_owned())
    }

    /// A command that runs a program on a node's host.
    pub(super) fn on(&self, node: u16, program: &std::path::Path) -> Command {
        let holder = self.holders[usize::from(node) - 1].id().to_string();
        let mut command = Command::new("nsenter");
        command.args(["--target", &holder, "--net", "--"]).arg(program);
        command
    }

    pub(super) fn set_link(&self, node: u16, is_up: bool) -> Result<(), String> {
        ip(&format!("link set v{node} {}", if is_up { "up" } else { "down" }))
    }

    /// Sets all links up, and removes all rules.
    pub(super) fn heal(&self, nodes: u16) -> Result<(), String> {
        self.set_rules(&[])?;
        (1..=nodes).try_for_each(|node| self.set_link(node, true))
    }

    /// Replaces all rules atomically.
    pub(super) fn set_rules(&self, rules: &[Rule]) -> Result<(), String> {
        let lines: String = rules.iter().flat_map(lines).collect();
        let mut script = format!("add table bridge {TABLE}\ndelete table bridge {TABLE}\n");
        script += &format!("table bridge {TABLE} {{\n");
        // Packets from hosts enter at the bridge; packets from clients originate there.
        for hook in ["prerouting", "output"] {
            script += &format!("chain {hook} {{\ntype filter hook {hook} priority 0;\n{lines}}}\n");
        }
        script += "}\n";
        tool("nft", &["-f", "-"], &script)
    }
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

impl Drop for Network {
    fn drop(&mut self) {
        for holder in &mut self.holders {
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}

fn ip(words: &str) -> Result<(), String> {
    tool("ip", &words.split(' ').collect::<Vec<_>>(), "")
}

fn tool(program: &str, arguments: &[&str], input: &str) -> Result<(), String> {
    let failed = |why: String| format!("`{program} {}`: {why}", arguments.join(" "));
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let written = child.stdin.take().map_or(Ok(()), |mut pipe| pipe.write_all(input.as_bytes()));
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    match (output.status.success(), written) {
        (true, Ok(())) => Ok(()),
        _ => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

    use super::*;
    use crate::chaos::namespaces;

    /// Few enough for a socket's buffer.
    const DATAGRAMS: usize = 100;

    const TEST: &str = "chaos::network::tests::set_rules__cut_what_they_name_and_nothing_else";

    /// Opens a socket on a host. The socket outlives its thread.
    fn socket(network: &Network, node: u16) -> UdpSocket {
        let holder = network.holders.get(usize::from(node) - 1).map(Child::id);
        let open = move || {
            if let Some(id) = holder {
                let space = File::open(format!("/proc/{id}/ns/net")).unwrap();
                move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            }
            UdpSocket::bind((host(node), PORT)).unwrap()
        };
        std::thread::spawn(open).join().unwrap()
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
