//! Calls to groups by IP multicast between network namespaces, some with loss of multicast packets: a client and three
//! members at a bridge, in separate namespaces.
//!
//! The test restarts itself in a namespace where it may build networks. It needs the programs `unshare`, `ip` and
//! `nft`, and root or user namespaces.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::common::own_network::{self, Trial};
use crate::common::{ECHO, over, pattern};
use crate::group::call_with;
use petrel::endpoint::{EndpointConfig, MembershipState, MulticastConfig, SharedMsg, Stop};
use petrel::group::{Group, GroupCall, Need};
use petrel::{Endpoint, Nexus};
use petrel_netns::{Host, ip, nft};
use petrel_proto::counters::Counters;

const MEMBERS: usize = 3;

const GROUP: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(239, 77, 0, 9)), 7709);

/// Fourteen packets.
const MESSAGE_BYTES: usize = 20_000;

/// A trial of the tests' network: two namespaces joined by a bridge, and a rule.
const TRIAL: &str = "ip link add br0 type bridge mcast_snooping 0 && ip link set br0 up && \
    echo | unshare --net true && ip link add v type veth peer name w && \
    nft 'add table inet p; add chain inet p in { type filter hook input priority 0; }; \
    add rule inet p in udp dport 9 numgen inc mod 5 0 drop'";

/// Runs a test of this file if networks can be built, or reports why not.
fn in_own_networks(test: &str, inside: impl FnOnce(&mut Network)) {
    let trial = Trial { what: "network namespaces at a bridge", script: TRIAL, input: "" };
    own_network::in_own_network(&trial, module_path!(), test, || inside(&mut Network::new()));
}

/// A host at the bridge.
struct Space {
    host: Host,
    address: Ipv4Addr,
}

impl Space {
    /// A host with the address 10.77.0.`number`.
    fn new(number: u8) -> Self {
        let (host, address) = (Host::new().unwrap(), Ipv4Addr::new(10, 77, 0, number));
        host.join(&format!("v{number}"), "eth0").unwrap();
        ip(&format!("link set v{number} master br0 up")).unwrap();
        host.bring_up("eth0", address).unwrap();
        Self { host, address }
    }

    /// Drops incoming multicast packets that match.
    fn drop_multicast(&self, matching: &'static str) {
        let chain = "add chain inet p in { type filter hook input priority 0; }";
        let rule = format!("add rule inet p in ip daddr 239.77.0.9 {matching} drop");
        let script = format!("add table inet p\n{chain}\n{rule}\n");
        self.host.spawn(move || nft(&script).unwrap()).join().unwrap();
    }
}

/// A client's namespace, and the members' namespaces with their servers.
struct Network {
    client: Space,
    members: Vec<Member>,
}

struct Member {
    space: Space,
    control: SocketAddr,
    stop: Stop,
    /// Requests executed.
    ran: Arc<AtomicU64>,
    server: Option<JoinHandle<Counters>>,
}

impl Network {
    fn new() -> Self {
        ip("link add br0 type bridge mcast_snooping 0").unwrap();
        ip("link set br0 up").unwrap();
        let members = (0..MEMBERS as u8).map(|nth| Member::start(Space::new(nth + 2))).collect();
        Self { client: Space::new(1), members }
    }
}

impl Member {
    fn start(space: Space) -> Self {
        let (ready, started) = mpsc::channel();
        let ran = Arc::new(AtomicU64::new(0));
        let counts = Arc::clone(&ran);
        let listen = SocketAddr::from((space.address, 0));
        let server = space.host.spawn(move || {
            let nexus = Nexus::builder().insecure().listen(listen).start().unwrap();
            let mut endpoint = nexus.endpoint(over(true, false)).unwrap();
            endpoint.on(ECHO, move |_, cx, request| {
                counts.fetch_add(1, Ordering::Relaxed);
                let len = request.data().len();
                request.reply_with(cx, len, |data, out| {
                    out.copy_from_slice(data);
                    len
                })
            });
            let stop = endpoint.stop_handle();
            ready.send((nexus.local_addr().unwrap(), stop.clone())).unwrap();
            endpoint.run(&stop);
            *endpoint.core().counters()
        });
        let (control, stop) = started.recv().unwrap();
        Self { space, control, stop, ran, server: Some(server) }
    }

    /// Ends the server and returns its counters.
    fn end(&mut self) -> Counters {
        self.stop.stop();
        self.server.take().expect("it runs").join().unwrap()
    }
}

fn client_config(address: Ipv4Addr) -> EndpointConfig {
    let mut config = over(true, false);
    config.data_address = Some(address.into());
    // The rules count packets sent in one piece as one.
    config.host.udp.gso = false;
    config
}

/// Makes calls to the group from the client's namespace, and checks every answer. Returns the client's counters, and
/// whether the members receive multicast in the end.
fn call_all(network: &Network, calls: u64) -> (Counters, Vec<MembershipState>) {
    let address = network.client.address;
    let members: Vec<SocketAddr> = network.members.iter().map(|member| member.control).collect();
    let inside = move || {
        let nexus = Nexus::builder().insecure().start().unwrap();
        let mut client = nexus.endpoint(client_config(address)).unwrap();
        let sessions: Vec<_> =
            members.iter().map(|&control| client.connect_wait(control).unwrap()).collect();
        let group = Group::new(sessions).unwrap();
        client.start_multicast(&group, MulticastConfig::new(GROUP)).unwrap();
        while hearing(&client, &group).contains(&MembershipState::Pending) {
            client.run_for(Duration::from_millis(1), |_, _| false);
        }
        (0..calls).for_each(|number| call(&mut client, &group, number));
        (*client.core().counters(), hearing(&client, &group))
    };
    network.client.host.spawn(inside).join().unwrap()
}

fn hearing(client: &Endpoint, group: &Group) -> Vec<MembershipState> {
    client.multicast_members(group).into_iter().map(|(_, hearing)| hearing).collect()
}

fn call(client: &mut Endpoint, group: &Group, number: u64) {
    let bytes = pattern(MESSAGE_BYTES, number);
    let message = SharedMsg::from(client.alloc_message(&bytes).unwrap());
    let all = GroupCall { response_bytes_max: bytes.len(), ..GroupCall::new(ECHO, Need::All) };
    for member in call_with(client, group, &message, all).unwrap() {
        let answer = member.outcome.answer().expect("all have answered");
        assert!(answer[..] == bytes[..], "call {number}: the bytes differ");
    }
}

/// Ends all servers; each has run every call once.
fn end_all(network: &mut Network, calls: u64) -> Vec<Counters> {
    let end = |member: &mut Member| {
        assert_eq!(member.ran.load(Ordering::Relaxed), calls, "at most once, and once");
        member.end()
    };
    network.members.iter_mut().map(end).collect()
}

#[test]
fn calls__with_loss_are_repaired_for_the_member_with_the_loss() {
    in_own_networks("calls__with_loss_are_repaired_for_the_member_with_the_loss", |network| {
        // Every fifth packet, and one in ten at random.
        network.members[1].space.drop_multicast("numgen inc mod 5 0");
        network.members[2].space.drop_multicast("numgen random mod 10 0");
        let calls = 100;
        let (client, hearing) = call_all(network, calls);
        let servers = end_all(network, calls);
        println!("client: {client:?}\nservers: {servers:?}");
        assert_eq!(hearing, vec![MembershipState::Joined; MEMBERS]);
        assert!(client.multicast_sent > 0 && client.multicast_announced > 0);
        // Only lost packets are repeated, not whole messages.
        let announced_packets = client.multicast_announced * client.multicast_sent / calls;
        assert!(client.packets_retransmitted < announced_packets / 2, "{client:?}");
        assert!(servers.iter().all(|server| server.multicast_adopted > 0), "{servers:?}");
    });
}

#[test]
fn calls__to_a_member_without_multicast_go_by_unicast() {
    in_own_networks("calls__to_a_member_without_multicast_go_by_unicast", |network| {
        network.members.iter().for_each(|member| member.space.drop_multicast(""));
        let calls = 40;
        let (client, hearing) = call_all(network, calls);
        let servers = end_all(network, calls);
        println!("client: {client:?}\nservers: {servers:?}");
        assert_eq!(hearing, vec![MembershipState::Joined; MEMBERS], "as far as they know");
        assert!(client.multicast_missed > 0, "it was tried");
        // Three multicasts each; then unicast calls.
        assert!(client.multicast_announced < calls * MEMBERS as u64 / 2, "{client:?}");
        for server in &servers {
            assert_eq!(server.multicast_adopted, 0);
        }
    });
}
