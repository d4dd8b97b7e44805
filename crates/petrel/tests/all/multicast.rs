//! Calls to groups by IP multicast, over the loopback device.

use std::cell::RefCell;
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;

use crate::common::{ECHO, Server, client, keep, over, pattern};
use crate::group::{call_with, connect};
use petrel::endpoint::{EndpointConfig, MembershipState, MulticastConfig, SessionState, SharedMsg};
use petrel::group::{Group, GroupCall, GroupReply, Need as Wanted};
use petrel::nexus::SetupError;
use petrel::{Endpoint, Status};
use petrel_skip::{Need, skip};

/// A group address with an unused port.
fn address() -> SocketAddr {
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    SocketAddr::from(([239, 77, 0, 1], port))
}

/// Packets of at most 1 472 bytes, though loopback allows larger ones.
fn ethernet() -> EndpointConfig {
    let mut config = over(true, false);
    config.host.udp.mtu = petrel_transport::udp::Mtu::Auto { cap_bytes: 1500 };
    config.sessions.credits = 256;
    // No timeouts, which on a busy host would count as lost multicast.
    config.protocol.rto.min_ns = 3_000_000_000;
    config.protocol.rto.probe_min_ns = 3_000_000_000;
    config.protocol.rto.initial_ns = 3_000_000_000;
    config.protocol.rto.max_ns = 3_000_000_000;
    config
}

fn servers(count: usize, config: &EndpointConfig) -> Vec<Server> {
    (0..count).map(|_| Server::start(config.clone(), "127.0.0.1:0", |_| {})).collect()
}

/// Returns true if the error says that the host has no multicast.
fn is_lack(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let lacks = [Errno::NODEV, Errno::ADDRNOTAVAIL, Errno::NETUNREACH, Errno::HOSTUNREACH];
    lacks.iter().any(|lack| error.raw_os_error() == Some(lack.raw_os_error()))
}

/// Starts multicast and runs the loop until all members have answered. Returns false, with a message, if the host has
/// no multicast.
fn start(client: &mut Endpoint, group: &Group) -> bool {
    match client.start_multicast(
        group,
        MulticastConfig { packets_min: 2, ..MulticastConfig::new(address()) },
    ) {
        Ok(()) => {}
        // The kernel's error about devices and routes. Any other failure is the library's.
        Err(SetupError::System { source, .. }) if is_lack(&source) => {
            skip(Need::Multicast, format!("no multicast on loopback: {source}"));
            return false;
        }
        Err(error) => panic!("{error}"),
    }
    while client
        .multicast_members(group)
        .iter()
        .any(|(_, hears)| *hears == MembershipState::Pending)
    {
        client.run_for(std::time::Duration::from_millis(1), |_, _| false);
    }
    true
}

fn call(client: &mut Endpoint, group: &Group, bytes: &[u8]) -> GroupReply {
    let message = SharedMsg::from(client.alloc_message(bytes).unwrap());
    let all = GroupCall { response_bytes_max: bytes.len(), ..GroupCall::new(ECHO, Wanted::All) };
    let reply = call_with(client, group, &message, all);
    if reply.is_ok() {
        message.try_unwrap().expect("all calls have ended");
    }
    reply
}

fn assert_echoed(reply: GroupReply, bytes: &[u8]) {
    for member in reply.unwrap() {
        let answer = member.outcome.answer().expect("it answered");
        assert!(answer[..] == *bytes, "{} bytes differ", bytes.len());
    }
}

#[test]
fn call__goes_by_multicast_where_that_is_of_use() {
    let servers = servers(3, &ethernet());
    let mut client = client(ethernet());
    let group = Group::new(connect(&mut client, &servers)).unwrap();
    if !start(&mut client, &group) {
        return;
    }
    assert!(
        client.multicast_members(&group).iter().all(|(_, hears)| *hears == MembershipState::Joined)
    );
    let packet = client.core().agreed(group.members()[0]).unwrap().packet_bytes as usize;
    let sent = |client: &Endpoint| client.core().counters().multicast_sent;
    for (len, packets) in
        [(0, 0), (packet, 0), (packet + 1, 2), (100_000, 100_000 / packet as u64 + 1)]
    {
        let before = sent(&client);
        let bytes = pattern(len, len as u64);
        let reply = call(&mut client, &group, &bytes);
        assert_echoed(reply, &bytes);
        assert_eq!(sent(&client) - before, packets, "{len} bytes");
    }
    // Too long for one window: sent by unicast.
    let before = sent(&client);
    let bytes = pattern(1 << 20, 1);
    let reply = call(&mut client, &group, &bytes);
    assert_echoed(reply, &bytes);
    assert_eq!(sent(&client), before);
    assert_eq!(client.buffers_in_use().count, 0);

    client.stop_multicast(&group);
    assert!(client.multicast_members(&group).is_empty());
    let bytes = pattern(20_000, 2);
    let reply = call(&mut client, &group, &bytes);
    assert_echoed(reply, &bytes);
    assert_eq!(sent(&client), before);
}

#[test]
fn members_that_do_not_want_it__are_sent_to_alone() {
    let mut deaf = ethernet();
    deaf.sessions.accept_multicast = false;
    let mut all = servers(2, &ethernet());
    all.extend(servers(1, &deaf));
    // A member that shares memory with the client.
    all.extend(servers(1, &over(false, true)));
    let mut both = ethernet();
    both.transports.shm = true;
    let mut client = client(both);
    // UDP members first: others on the host would share memory, too.
    let sessions = connect(&mut client, &all);
    let group = Group::new(sessions).unwrap();
    if !start(&mut client, &group) {
        return;
    }
    let hearing: Vec<_> =
        client.multicast_members(&group).into_iter().map(|(_, hearing)| hearing).collect();
    assert_eq!(hearing[..2], [MembershipState::Joined, MembershipState::Joined]);
    let MembershipState::Refused(reason) = &hearing[2] else { panic!("{:?}", hearing[2]) };
    assert!(reason.message.contains("takes no multicast"), "{}", reason.message);
    assert_eq!(hearing[3], MembershipState::Unreachable);
    for len in [3_000, 50_000] {
        let bytes = pattern(len, 3);
        let reply = call(&mut client, &group, &bytes);
        assert_echoed(reply, &bytes);
    }
    assert_eq!(client.core().counters().multicast_announced, 2 * 2);
}

#[test]
fn a_member_that_dies__fails_alone() {
    let mut servers = servers(3, &ethernet());
    let mut client = client(ethernet());
    let group = Group::new(connect(&mut client, &servers)).unwrap();
    if !start(&mut client, &group) {
        return;
    }
    servers[1].end();
    let bytes = pattern(10_000, 4);
    let failure = call(&mut client, &group, &bytes).expect_err("one is gone");
    assert_eq!(failure.failures().map(|(place, _)| place).collect::<Vec<_>>(), [1]);
    drop(failure);
    let rest = Group::new([group.members()[0], group.members()[2]]).unwrap();
    if start(&mut client, &rest) {
        let reply = call(&mut client, &rest, &bytes);
        assert_echoed(reply, &bytes);
    }
}

/// The server of one member drains: calls to the member fail, by multicast and by unicast.
#[test]
fn a_member_whose_server_drains__fails_alone() {
    const NEVER: u16 = 9;
    let others = servers(2, &ethernet());
    let leaves = petrel::Server::bind("127.0.0.1:0")
        .endpoint(ethernet())
        .serve(|_| (), |endpoint| keep(endpoint, NEVER));
    let leaves = leaves.start().unwrap();
    let mut client = client(ethernet());
    let mut members = connect(&mut client, &others);
    members.push(client.connect_wait(leaves.local_addr()).unwrap());
    let group = Group::new(members).unwrap();
    if !start(&mut client, &group) {
        return;
    }
    let (last, ended) = (group.members()[2], Rc::new(RefCell::new(None)));
    let end = Rc::clone(&ended);
    let room = || client.alloc(0).unwrap();
    let (request, response) = (room(), room());
    // The outstanding call keeps the session: a client leaves when its last call has ended.
    client
        .call(last, NEVER, request)
        .into_buffer(response)
        .then(move |_, _, reply| *end.borrow_mut() = Some(reply))
        .unwrap();
    leaves.stop();
    while client.session_state(last) != SessionState::Draining {
        client.run_for(std::time::Duration::from_millis(1), |_, _| false);
    }
    let failure = call(&mut client, &group, &pattern(20_000, 3)).unwrap_err();
    let failures: Vec<_> = failure.failures().map(|(member, why)| (member, why.status)).collect();
    assert_eq!(failures, [(2, Status::Unavailable)]);
    assert!(ended.borrow().is_none());
    drop(leaves);
    client.run_until(|_, _| ended.borrow().is_some());
}

#[test]
fn groups_without_a_network__have_no_multicast() {
    let servers = servers(2, &over(false, true));
    let mut client = client(over(false, true));
    let group = Group::new(connect(&mut client, &servers)).unwrap();
    let refused = client.start_multicast(&group, MulticastConfig::new(address())).unwrap_err();
    assert_eq!(refused.to_string(), "no member of the group has an open session over UDP");
    let bytes = pattern(10_000, 5);
    let reply = call(&mut client, &group, &bytes);
    assert_echoed(reply, &bytes);
}

#[test]
fn addresses_that_are_no_groups__are_refused() {
    let servers = servers(1, &ethernet());
    let mut client = client(ethernet());
    let group = Group::new(connect(&mut client, &servers)).unwrap();
    for address in ["127.0.0.1:7000", "224.0.0.5:7000", "239.1.1.1:0", "[ff15::1]:7000"] {
        let config = MulticastConfig::new(address.parse().unwrap());
        let refused = client.start_multicast(&group, config).unwrap_err();
        let text = refused.to_string();
        assert!(matches!(refused, SetupError::Refused(_)), "{address}: {text}");
        assert!(text.starts_with("this transport cannot use the link: "), "{address}: {text}");
    }
}
