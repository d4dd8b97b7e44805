//! ECN marks end to end: a marking network, a client whose controller heeds marks (DCQCN), and a server that echoes
//! them (`docs/wire-protocol.md` §3.2, §7.4, §8.4).
//!
//! The network is loopback in a separate network namespace, where nftables mark ECN-capable packets. Each test restarts
//! itself in such a namespace, and needs the programs `unshare`, `ip` and `nft`, and root or user namespaces.

use crate::common::own_network::{self, Trial};
use crate::common::{ECHO, Server, client, over, pattern};
use petrel::Endpoint;
use petrel::endpoint::{EndpointConfig, SessionId};
use petrel_proto::congestion::{
    CongestionConfig, CongestionControl, CongestionCounters, DcqcnConfig, Rate,
};

/// The limit of calls within which an awaited event must come.
const CALLS_MAX: u32 = 20_000;

/// Marks all ECN-capable UDP packets from (`sport`) or to (`dport`) a port.
fn marking(ports: &[(&str, u16)]) -> String {
    let rules = ports.iter().map(|(side, port)| {
        format!("udp {side} {port} ip ecn ect0 ip ecn set ce\nudp {side} {port} ip6 ecn ect0 ip6 ecn set ce\n")
    });
    table(&rules.collect::<String>())
}

fn table(rules: &str) -> String {
    let head = "type filter hook output priority 0";
    format!("flush ruleset\ntable inet petrel {{\nchain way {{\n{head}\n{rules}}}\n}}\n")
}

/// Runs a test of this file where nftables mark packets, or reports why not.
fn in_own_network(test: &str, inside: impl FnOnce()) {
    let script = "ip link set lo up && nft -f -";
    let rules = marking(&[("dport", 9)]);
    let trial = Trial { what: "network namespace with marks", script, input: &rules };
    own_network::in_own_network(&trial, module_path!(), test, inside);
}

fn set_rules(rules: &str) {
    petrel_netns::nft(rules).unwrap();
}

/// A client with DCQCN. No timeouts, which on a busy host would count as congestion.
fn heeding() -> EndpointConfig {
    let mut config = over(true, false);
    let dcqcn = CongestionConfig::Dcqcn(DcqcnConfig::for_line(Rate::gbit(1)));
    config.protocol.congestion = CongestionControl::new(dcqcn).unwrap();
    config.protocol.rto.min_ns = 30_000_000_000;
    config.protocol.rto.initial_ns = 30_000_000_000;
    config.protocol.rto.max_ns = 30_000_000_000;
    config
}

/// Makes calls with small and large messages, and compares the responses.
fn call(client: &mut Endpoint, session: SessionId, times: u32) {
    for number in 0..times {
        let len = if number % 10 == 9 { 100_000 } else { 40 };
        let message = pattern(len, number.into());
        let reply = client.call(session, ECHO, &message).wait().unwrap();
        assert!(reply[..] == message[..], "call {number} differs");
    }
}

struct Ends {
    client: Endpoint,
    session: SessionId,
    /// The client's data port, and the server's.
    ports: [u16; 2],
    server: Server,
}

impl Ends {
    fn new(listen: &str, mut config: EndpointConfig) -> Self {
        let (say, port) = std::sync::mpsc::channel();
        let server = Server::start(over(true, false), listen, move |endpoint| {
            say.send(endpoint.transport().udp().local_addr().port()).unwrap();
        });
        config.data_address = Some(server.address.ip());
        let mut client = client(config);
        let session = client.connect_wait(server.address).unwrap();
        let ports = [client.transport().udp().local_addr().port(), port.recv().unwrap()];
        Self { client, session, ports, server }
    }

    fn call(&mut self, times: u32) {
        call(&mut self.client, self.session, times);
    }

    fn congestion(&self) -> CongestionCounters {
        self.client.stats().congestion
    }

    /// Calls until congestion control has counted the event.
    fn call_until(&mut self, what: &str, has_happened: impl Fn(&CongestionCounters) -> bool) {
        for _ in 0..CALLS_MAX {
            if has_happened(&self.congestion()) {
                return;
            }
            self.call(1);
        }
        panic!("{what}: not after {CALLS_MAX} calls: {:?}", self.client.stats());
    }
}

/// Both families, if the host has both.
fn addresses() -> impl Iterator<Item = &'static str> {
    let all = ["127.0.0.1:0", "[::1]:0"].into_iter();
    all.filter(|address| std::net::UdpSocket::bind(address).is_ok())
}

#[test]
fn dcqcn__without_marks_is_never_limited() {
    for address in addresses() {
        let mut ends = Ends::new(address, heeding());
        ends.call(300);
        let stats = ends.client.stats();
        assert_eq!((stats.congestion.marks, stats.congestion.sessions_limited), (0, 0));
        assert_eq!((stats.congestion.updates, stats.transport.rx_marked), (0, 0));
    }
}

#[test]
fn dcqcn__slows_down_by_marks_on_requests_and_recovers_without() {
    in_own_network("dcqcn__slows_down_by_marks_on_requests_and_recovers_without", || {
        for address in addresses() {
            let mut ends = Ends::new(address, heeding());
            ends.call(50);
            assert_eq!(ends.congestion().marks, 0);

            set_rules(&marking(&[("dport", ends.ports[1])]));
            ends.call_until("limited", |counted| {
                counted.marks > 20 && counted.sessions_limited > 0
            });
            // The server received the marks: the client knows of them by the echo alone.
            assert_eq!(ends.client.stats().transport.rx_marked, 0);

            set_rules(&table(""));
            let marks = ends.congestion().marks;
            ends.call_until("released", |counted| counted.sessions_released > 0);
            ends.call(100);
            let counted = ends.congestion();
            assert!(counted.marks <= marks + 1, "marks go on: {counted:?}");
            assert_eq!(counted.sessions_limited, counted.sessions_released);
        }
    });
}

#[test]
fn dcqcn__heeds_marks_on_answers() {
    in_own_network("dcqcn__heeds_marks_on_answers", || {
        for address in addresses() {
            let mut ends = Ends::new(address, heeding());
            set_rules(&marking(&[("dport", ends.ports[0])]));
            ends.call_until("limited", |counted| {
                counted.marks > 20 && counted.sessions_limited > 0
            });
            assert!(ends.client.stats().transport.rx_marked > 20);
        }
    });
}

/// ECN-capable packets since the rules were set.
fn ect_count() -> u64 {
    let list = ["list", "counter", "inet", "petrel", "ect"];
    let text = petrel_netns::run("nft", &list, "").unwrap();
    let count = text.split_whitespace().skip_while(|word| *word != "packets").nth(1);
    count.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("no count in {text}"))
}

/// RFC 3168: packets must not be marked if no sender learns of the marks.
#[test]
fn server__sends_ect_only_to_clients_that_heed_marks() {
    in_own_network("server__sends_ect_only_to_clients_that_heed_marks", || {
        let mut heeding = Ends::new("127.0.0.1:0", heeding());
        let mut deaf = over(true, false);
        deaf.protocol.congestion = CongestionControl::new(CongestionConfig::None).unwrap();
        let mut other = client(deaf);
        let session = other.connect_wait(heeding.server.address).unwrap();
        let port = other.transport().udp().local_addr().port();
        let count = |port| {
            let either = format!("udp sport {port} ip ecn != not-ect counter name ect\n");
            let way = format!("{either}udp dport {port} ip ecn != not-ect counter name ect\n");
            set_rules(&table(&way).replacen("chain", "counter ect {}\nchain", 1));
        };
        count(port);
        for _ in 0..20 {
            heeding.call(10);
            call(&mut other, session, 10);
        }
        assert_eq!(ect_count(), 0, "ECT to or from a client that does not heed marks");
        count(heeding.ports[0]);
        heeding.call(10);
        call(&mut other, session, 10);
        assert!(ect_count() >= 20, "not ECT to or from the client that heeds marks");
    });
}
