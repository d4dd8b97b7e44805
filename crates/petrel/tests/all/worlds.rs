//! Clients and servers at their defaults on networks as they are: firewalls, address translation, load balancers, several addresses, both
//! families of addresses.
//!
//! The tests restart themselves in a namespace where they may build networks. They need the programs `unshare`, `ip` and `nft`, and root
//! or user namespaces.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use petrel::endpoint::AllowedTransports;
use petrel::server::RunningServer;
use petrel::{Client, Execution, Server};
use petrel_netns::{Host, ip, nft};

use crate::common::own_network::{self, Trial};
use crate::stream::{ECHO, MEDIUM, set_up};

/// Calls in each world, all of which are answered.
const CALLS: u32 = 1_000;

const TRIAL: &str = "echo | unshare --net true && ip link add v type veth peer name w && \
    sysctl -q net.ipv4.ip_forward=1 && \
    nft 'add table inet p; add chain inet p f { type filter hook forward priority 0; }; \
    add rule inet p f udp dport 9 reject; add table ip n; \
    add chain ip n p { type nat hook prerouting priority -100; }; \
    add rule ip n p tcp dport 9 dnat to 10.2.0.2:9'";

/// A client and a server, with a router between.
struct World {
    client: Host,
    server: Host,
    _running: RunningServer,
}

fn serve(listen: &str) -> RunningServer {
    Server::bind(listen).insecure().threads(2).serve(|_| (), set_up).start().unwrap()
}

impl World {
    /// The server listens at this address of its host.
    fn new(listen: &'static str) -> Self {
        let (client, server) = (Host::new().unwrap(), Host::new().unwrap());
        // Without the search for duplicates a link-local address is used at once: a connection made before would have another source address
        // than the datagrams after it.
        let at_once = ["-q", "net.ipv6.conf.default.accept_dad=0"];
        petrel_netns::run("sysctl", &at_once, "").unwrap();
        for (host, number) in [(&client, 1), (&server, 2)] {
            host.run("sysctl", &at_once, "").unwrap();
            let device = format!("v{number}");
            host.join(&device, "eth0").unwrap();
            ip(&format!("address add 10.{number}.0.1/24 dev {device}")).unwrap();
            ip(&format!("-6 address add fd00:{number}::1/64 dev {device} nodad")).unwrap();
            ip(&format!("link set {device} up")).unwrap();
            host.bring_up("eth0", format!("10.{number}.0.2").parse().unwrap()).unwrap();
            for arguments in [
                format!("-6 address add fd00:{number}::2/64 dev eth0 nodad"),
                format!("route add default via 10.{number}.0.1"),
                format!("-6 route add default via fd00:{number}::1"),
            ] {
                host.run("ip", &arguments.split(' ').collect::<Vec<_>>(), "").unwrap();
            }
        }
        // A second address of the server's host.
        server.run("ip", &["address", "add", "10.2.0.3/24", "dev", "eth0"], "").unwrap();
        for setting in ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"] {
            petrel_netns::run("sysctl", &["-q", setting], "").unwrap();
        }
        let running = server.spawn(move || serve(listen)).join().unwrap();
        Self { client, server, _running: running }
    }

    fn call(&self, address: &'static str, until_medium: &'static str) {
        let calling = self.client.spawn(move || call(address, until_medium));
        if let Err(panic) = calling.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

/// Calls a server until the medium of the session is that one. Every call is answered.
fn call(address: &str, until_medium: &str) {
    let address: SocketAddr = address.parse().unwrap();
    let begin = Instant::now();
    let client = Client::builder().insecure().connect_wait(address).unwrap();
    println!("{address}: connected after {:?}", begin.elapsed());
    let medium = || {
        let reply = client.call(MEDIUM, "").wait().unwrap();
        String::from_utf8(reply.to_vec()).unwrap()
    };
    for number in 0..CALLS {
        let reply = client.call(ECHO, number.to_le_bytes()).wait();
        assert_eq!(reply.unwrap(), number.to_le_bytes(), "{address}, call {number}");
    }
    let large: Vec<u8> = (0..300_000).map(|at| (at % 251) as u8).collect();
    assert!(client.call(ECHO, large.clone()).wait().unwrap() == large);
    while medium() != until_medium {
        assert!(begin.elapsed() < Duration::from_secs(60), "{address}: {} is used", medium());
        thread::sleep(Duration::from_millis(20));
    }
    println!("{address}: {until_medium} after {:?}", begin.elapsed());
}

fn in_world(test: &str, inside: impl FnOnce()) {
    let trial = Trial { what: "network namespaces with a router", script: TRIAL, input: "" };
    own_network::in_own_network(&trial, module_path!(), test, inside);
}

const FORWARD: &str =
    "add table inet f\nadd chain inet f f { type filter hook forward priority 0; }\n";

#[test]
fn a_network_that_forwards_datagrams_carries_them() {
    in_world("a_network_that_forwards_datagrams_carries_them", || {
        World::new("10.2.0.2:7000").call("10.2.0.2:7000", "udp");
    });
}

#[test]
fn firewalls_that_drop_or_reject_udp() {
    in_world("firewalls_that_drop_or_reject_udp", || {
        let world = World::new("10.2.0.2:7000");
        for verdict in ["drop", "reject", "reject with icmp type admin-prohibited"] {
            nft(&format!("{FORWARD}add rule inet f f meta l4proto udp {verdict}")).unwrap();
            world.call("10.2.0.2:7000", "stream");
            nft("delete table inet f").unwrap();
        }
        // One direction alone.
        for direction in ["ip saddr 10.1.0.2", "ip saddr 10.2.0.2"] {
            nft(&format!("{FORWARD}add rule inet f f {direction} meta l4proto udp drop")).unwrap();
            world.call("10.2.0.2:7000", "stream");
            nft("delete table inet f").unwrap();
        }
    });
}

/// A call was not sent, for this reason.
fn assert_unreached(transports: AllowedTransports, address: &str, expected: &str) {
    let text_within = |timeout| {
        let client = Client::builder().insecure().transports(transports).lazy();
        let client = client.connect_wait(address.parse::<SocketAddr>().unwrap()).unwrap();
        let call = client.call(ECHO, "").timeout(timeout).wait_for_ready();
        let error = call.wait().unwrap_err();
        assert_eq!(error.execution, Execution::NotSent);
        error.to_string()
    };
    // On a busy machine the probes may take longer than the first call.
    let mut texts = [5, 15, 60].map(Duration::from_secs).into_iter().map(text_within);
    assert!(texts.any(|text| text.contains(expected)), "no call ends with: {expected}");
}

/// Without streams the reason is reported, and no call was sent.
#[test]
fn udp_alone_behind_a_firewall_fails_with_the_reason() {
    in_world("udp_alone_behind_a_firewall_fails_with_the_reason", || {
        let world = World::new("10.2.0.2:7000");
        let at_server = world.server.spawn(|| {
            let server = Server::bind("10.2.0.2:7001").insecure();
            server.transports(AllowedTransports::UDP).serve(|_| (), |_| {}).start().unwrap()
        });
        let _udp_alone = at_server.join().unwrap();
        nft(&format!("{FORWARD}add rule inet f f meta l4proto udp drop")).unwrap();
        let calling = world.client.spawn(|| {
            let udp = "UDP does not get through: no answer to";
            assert_unreached(AllowedTransports::UDP, "10.2.0.2:7000", udp);
            let before = "UDP did not get through a moment ago";
            assert_unreached(AllowedTransports::ALL, "10.2.0.2:7001", before);
        });
        calling.join().unwrap();
    });
}

/// A rule of the client's own host: the kernel refuses the datagram (EPERM).
#[test]
fn a_rule_of_the_own_host() {
    in_world("a_rule_of_the_own_host", || {
        let world = World::new("10.2.0.2:7000");
        let chain =
            "add table inet o\nadd chain inet o o { type filter hook output priority 0; }\n";
        let rule = format!("{chain}add rule inet o o meta l4proto udp reject");
        world.client.run("nft", &["-f", "-"], &rule).unwrap();
        world.call("10.2.0.2:7000", "stream");
        let udp_alone = || {
            let why = "UDP does not get through: this host refuses to send";
            assert_unreached(AllowedTransports::UDP, "10.2.0.2:7000", why);
        };
        world.client.spawn(udp_alone).join().unwrap();
    });
}

/// The client's address is translated, as behind a home router, or the server's, as by a Service of Kubernetes.
#[test]
fn translated_addresses() {
    in_world("translated_addresses", || {
        let world = World::new("10.2.0.2:7000");
        let chains = "add table ip n\nadd chain ip n p { type nat hook prerouting priority -100; }\n\
            add chain ip n o { type nat hook postrouting priority 100; }\n";
        // The translator keeps the port of the first datagram if it is free: UDP gets through, since the client sends first.
        nft(&format!("{chains}add rule ip n o oifname v2 masquerade")).unwrap();
        world.call("10.2.0.2:7000", "udp");
        nft("delete table ip n").unwrap();
        nft(&format!("{chains}add rule ip n o oifname v2 masquerade random")).unwrap();
        world.call("10.2.0.2:7000", "stream");
        nft("delete table ip n").unwrap();
        let service = "add rule ip n p ip daddr 10.1.0.1 tcp dport 80 dnat to 10.2.0.2:7000\n\
            add rule ip n o ip daddr 10.2.0.2 masquerade";
        nft(&format!("{chains}{service}")).unwrap();
        world.call("10.1.0.1:80", "stream");
    });
}

/// A Service passes TCP alone to the server, which names its own address, or another one of its host, for datagrams.
#[test]
fn a_server_that_names_the_address_for_its_datagrams() {
    in_world("a_server_that_names_the_address_for_its_datagrams", || {
        let world = World::new("0.0.0.0:7000");
        let mut rules =
            "add table ip n\nadd chain ip n p { type nat hook prerouting priority -100; }\n"
                .to_owned();
        // The last address is of no host: datagrams get no answer.
        let named = ["10.2.0.2", "10.2.0.3", "10.2.0.9"];
        let mut running = Vec::new();
        for (port, ip) in (7001..).zip(named) {
            rules +=
                &format!("add rule ip n p ip daddr 10.1.0.1 tcp dport {port} dnat to 10.2.0.2\n");
            let serve = move || {
                let server =
                    Server::bind(("0.0.0.0", port)).insecure().data_ip(ip.parse().unwrap());
                server.threads(2).serve(|_| (), set_up).start().unwrap()
            };
            running.push(world.server.spawn(serve).join().unwrap());
        }
        nft(&rules).unwrap();
        world.call("10.1.0.1:7001", "udp");
        world.call("10.1.0.1:7002", "udp");
        world.call("10.2.0.2:7002", "udp");
        world.call("10.1.0.1:7003", "stream");
    });
}

/// A path becomes smaller while large messages are on the way: by the host's own device, and by a router that reports it. The session goes on,
/// and so do small packets without fragments.
#[test]
fn a_path_that_becomes_smaller() {
    in_world("a_path_that_becomes_smaller", || {
        let world = World::new("10.2.0.2:7000");
        let (shrink, asked) = mpsc::channel();
        let (tell, done) = mpsc::channel::<()>();
        let calling = world.client.spawn(move || {
            let address: SocketAddr = "10.2.0.2:7000".parse().unwrap();
            let client = Client::builder().insecure().connect_wait(address).unwrap();
            let large: Vec<u8> = (0..200_000).map(|at| (at % 251) as u8).collect();
            // UDP without an answer for a moment is left for a stream, for a while.
            while client.call(MEDIUM, "").wait().unwrap() != b"udp"[..] {}
            let before = client.stats();
            for round in 0..60 {
                if round == 20 {
                    shrink.send(()).unwrap();
                    done.recv().unwrap();
                }
                assert!(client.call(ECHO, large.clone()).wait().unwrap() == large, "{round}");
                assert_eq!(client.call(MEDIUM, "").wait().unwrap(), b"udp");
            }
            let stats = client.stats();
            let of_rounds =
                (stats.retries - before.retries, stats.sessions_left - before.sessions_left);
            assert_eq!(of_rounds, (0, 0));
        });
        asked.recv().unwrap();
        world.server.run("ip", &["link", "set", "eth0", "mtu", "1300"], "").unwrap();
        ip("link set v2 mtu 1300").unwrap();
        tell.send(()).unwrap();
        calling.join().unwrap();
    });
}

/// The firewall is opened while the client is connected.
#[test]
fn udp_is_used_again_when_it_gets_through() {
    in_world("udp_is_used_again_when_it_gets_through", || {
        let world = World::new("10.2.0.2:7000");
        nft(&format!("{FORWARD}add rule inet f f meta l4proto udp drop")).unwrap();
        let opened = thread::spawn(|| {
            thread::sleep(Duration::from_secs(3));
            nft("delete table inet f").unwrap();
        });
        world.call("10.2.0.2:7000", "udp");
        opened.join().unwrap();
    });
}

#[test]
fn hosts_with_several_addresses_and_both_families() {
    in_world("hosts_with_several_addresses_and_both_families", || {
        let world = World::new("0.0.0.0:7000");
        for address in ["10.2.0.2:7000", "10.2.0.3:7000"] {
            world.call(address, "udp");
        }
        let both = world.server.spawn(|| serve("[::]:7001")).join().unwrap();
        for address in ["[fd00:2::2]:7001", "10.2.0.2:7001", "10.2.0.3:7001"] {
            world.call(address, "udp");
        }
        // An address that comes later, and goes.
        world.server.run("ip", &["address", "add", "10.2.0.4/24", "dev", "eth0"], "").unwrap();
        world.call("10.2.0.4:7001", "udp");
        world.server.run("ip", &["address", "del", "10.2.0.4/24", "dev", "eth0"], "").unwrap();
        world.call("10.2.0.2:7001", "udp");
        both.stop();
        // A link-local address, with the zone of the client's device.
        let near = serve("[::]:7002");
        let shown =
            petrel_netns::run("ip", &["-6", "-o", "address", "show", "v1", "scope", "link"], "");
        let shown = shown.unwrap();
        let address = shown.split_whitespace().find(|word| word.starts_with("fe80")).unwrap();
        let (address, _) = address.split_once('/').unwrap();
        let device = world.client.run("ip", &["-o", "link", "show", "eth0"], "").unwrap();
        let (zone, _) = device.split_once(':').unwrap();
        let address = format!("[{address}%{zone}]:7002");
        world.call(address.leak(), "udp");
        near.stop();
    });
}
