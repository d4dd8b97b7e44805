//! Ways, asked of the kernel.

use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::time::Instant;

use petrel_netns::{Host, ip};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{SendFlags, getsockname, sendto};
use socket2::SockRef;

use super::network::{
    FAR, FAR_MAC, NEAR, NEAR_MAC, Raw, TIME_MAX, between_hosts, far_ip, far_socket, index_of,
};
use crate::device::ether::frame::MacAddr;
use crate::device::ether::ways::{Changes, Link, Neighbour, NoWay, Way, Ways};

const OTHER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

fn to(ip: &str) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), 7_000)
}

fn open() -> Ways {
    Ways::open(index_of("near")).unwrap()
}

fn is_readable(ways: &Ways) -> bool {
    let seconds = TIME_MAX.as_secs() as i64;
    let wait = Timespec { tv_sec: seconds, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(ways.fd(), PollFlags::IN)], Some(&wait)).unwrap() == 1
}

/// Reads events until the changes are as expected.
fn read_until(ways: &mut Ways, is_expected: impl Fn(&Changes) -> bool) {
    let begin = Instant::now();
    let mut seen = Vec::new();
    while begin.elapsed() < TIME_MAX && is_readable(ways) {
        let changes = ways.read_events();
        if is_expected(&changes) {
            return;
        }
        if seen.last() != Some(&changes) {
            seen.push(changes);
        }
    }
    panic!("not among the changes: {seen:?}");
}

/// Lets the kernels resolve each other's addresses, as calls by their sockets do.
fn resolve(host: &Host) {
    for (near, far) in NEAR.into_iter().zip(FAR) {
        let far = far_socket(host, far);
        let near = UdpSocket::bind((near, 0)).unwrap();
        near.send_to(b"x", far.local_addr().unwrap()).unwrap();
        far.recv(&mut [0]).unwrap();
    }
}

fn direct(near: &str, far: &str) -> Way {
    Way {
        from_mac: NEAR_MAC,
        to_mac: FAR_MAC,
        from_ip: near.parse().unwrap(),
        next_hop: far.parse().unwrap(),
        mtu_bytes: 1_500,
    }
}

#[test]
fn way_to__a_neighbour_is_found_once_the_kernel_has_resolved_its_address() {
    between_hosts(|host| {
        let mut ways = open();
        for far in FAR {
            let unresolved = NoWay::Unresolved(far.parse().unwrap());
            assert_eq!(ways.way_to(None, to(far)), Err(unresolved));
        }
        ways.read_events();
        resolve(host);
        let mut known = Vec::new();
        while known.len() < 2 {
            assert!(is_readable(&ways));
            let changes = ways.read_events();
            known
                .extend(changes.neighbours.iter().filter(|n| n.mac == Some(FAR_MAC)).map(|n| n.ip));
            known.sort();
            known.dedup();
        }
        assert_eq!(known, FAR.map(|far| far.parse::<IpAddr>().unwrap()));
        for (near, far) in NEAR.into_iter().zip(FAR) {
            assert_eq!(ways.way_to(None, to(far)), Ok(direct(near, far)));
            let from = Some(near.parse().unwrap());
            assert_eq!(ways.way_to(from, to(far)), Ok(direct(near, far)));
        }
        let any = Some("::".parse().unwrap());
        assert_eq!(ways.way_to(any, to("::ffff:10.9.0.2")), Ok(direct(NEAR[0], FAR[0])));
        // The host sends from its own addresses alone.
        let foreign = Some("10.9.0.77".parse().unwrap());
        assert!(matches!(ways.way_to(foreign, to(FAR[0])), Err(NoWay::Refused(_))));
    });
}

#[test]
fn way_to__a_distant_peer_goes_by_the_gateway() {
    between_hosts(|host| {
        resolve(host);
        let mut ways = open();
        let distant = ["10.77.1.1", "fd77::1"];
        assert_eq!(ways.way_to(None, to(distant[0])), Err(NoWay::Refused(Errno::NETUNREACH)));
        ways.read_events();
        ip("route add 10.77.0.0/16 via 10.9.0.2 mtu 1300").unwrap();
        ip("route add fd77::/64 via fd09::2 mtu 1300").unwrap();
        read_until(&mut ways, |changes| changes.must_ask_again);
        for ((near, far), distant) in NEAR.into_iter().zip(FAR).zip(distant) {
            let way = Way { mtu_bytes: 1_300, ..direct(near, far) };
            assert_eq!(ways.way_to(None, to(distant)), Ok(way));
        }
        ip("link set near mtu 1280").unwrap();
        read_until(&mut ways, |changes| changes.must_ask_again);
        assert_eq!(ways.way_to(None, to(distant[0])).unwrap().mtu_bytes, 1_280);
    });
}

#[test]
fn way_to__a_link_local_peer_needs_the_scope_of_the_device() {
    between_hosts(|_| {
        ip("address add fe80::1/64 dev near nodad").unwrap();
        ip(&format!("neigh replace fe80::2 lladdr {FAR_MAC:?} nud permanent dev near")).unwrap();
        let mut ways = open();
        let scoped = |scope| SocketAddrV6::new("fe80::2".parse().unwrap(), 7_000, 0, scope).into();
        let way = ways.way_to(None, scoped(index_of("near"))).unwrap();
        assert_eq!((way.to_mac, way.next_hop), (FAR_MAC, "fe80::2".parse::<IpAddr>().unwrap()));
        assert!(ways.way_to(None, scoped(index_of("lo"))).is_err());
    });
}

#[test]
fn way_to__says_why_there_is_none() {
    between_hosts(|_| {
        ip("link add other type veth peer name end").unwrap();
        ip("address add 10.10.0.1/24 dev other").unwrap();
        ip("link set other up").unwrap();
        ip("link set end up").unwrap();
        ip("route add 10.78.0.0/16 via inet6 fd09::2 dev near").unwrap();
        // Kernels without such tunnels refuse the route.
        let tunnel = match ip("route add 10.79.0.0/16 encap ip id 1 dst 10.9.0.2 dev near") {
            Ok(()) => NoWay::Encapsulated,
            Err(_) => NoWay::Refused(Errno::NETUNREACH),
        };
        ip("route add blackhole 10.80.0.0/16").unwrap();
        let mut ways = open();
        for (far, reason) in [
            ("10.10.0.2", NoWay::OtherDevice(index_of("other"))),
            ("10.9.0.1", NoWay::Local),
            ("127.0.0.1", NoWay::Local),
            ("fd09::1", NoWay::Local),
            ("::1", NoWay::Local),
            ("224.0.0.1", NoWay::NotUnicast),
            ("ff0e::1", NoWay::NotUnicast),
            ("10.9.0.255", NoWay::NotUnicast),
            ("10.78.0.1", NoWay::OtherFamily),
            ("10.79.0.1", tunnel),
            ("10.80.0.1", NoWay::Refused(Errno::INVAL)),
            ("192.0.2.1", NoWay::Refused(Errno::NETUNREACH)),
            ("2001:db8::1", NoWay::Refused(Errno::NETUNREACH)),
        ] {
            assert_eq!(ways.way_to(None, to(far)), Err(reason), "{far}");
        }
        assert_eq!(Ways::open(9_999).unwrap_err().raw_os_error(), Some(libc::ENODEV));
        assert!(Ways::open(index_of("lo")).unwrap_err().to_string().contains("Ethernet"));
    });
}

#[test]
fn read_events__lists_neighbours_that_change() {
    between_hosts(|_| {
        let mut ways = open();
        for far in FAR {
            let far_ip: IpAddr = far.parse().unwrap();
            for mac in [FAR_MAC, OTHER_MAC] {
                ip(&format!("neigh replace {far} lladdr {mac:?} nud permanent dev near")).unwrap();
                let changed = Neighbour { ip: far_ip, mac: Some(mac) };
                read_until(&mut ways, |changes| changes.neighbours.contains(&changed));
                assert_eq!(ways.way_to(None, to(far)).unwrap().to_mac, mac);
            }
            ip(&format!("neigh del {far} dev near")).unwrap();
            let changed = Neighbour { ip: far_ip, mac: None };
            read_until(&mut ways, |changes| changes.neighbours.contains(&changed));
            assert_eq!(ways.way_to(None, to(far)), Err(NoWay::Unresolved(far_ip)));
        }
    });
}

#[test]
fn read_events__tells_the_state_of_the_link() {
    between_hosts(|host| {
        let mut ways = open();
        assert_eq!(ways.link(), Link::Up);
        ip("link set near down").unwrap();
        read_until(&mut ways, |changes| changes.link == Link::Down);
        ip("link set near up").unwrap();
        read_until(&mut ways, |changes| changes.link == Link::Up && changes.must_ask_again);
        // No carrier.
        far_ip(host, "link set far down");
        read_until(&mut ways, |changes| changes.link == Link::Down);
        far_ip(host, "link set far up");
        read_until(&mut ways, |changes| changes.link == Link::Up);
        ip("link set near address 02:00:00:00:00:09").unwrap();
        read_until(&mut ways, |changes| changes.must_ask_again);
        ip(&format!("neigh replace {} lladdr {FAR_MAC:?} nud permanent dev near", FAR[0])).unwrap();
        assert_eq!(ways.way_to(None, to(FAR[0])).unwrap().from_mac, OTHER_MAC);
        // Another device's end is none of ours.
        ip("link add other type veth peer name end").unwrap();
        ip("link del other").unwrap();
        ip("link del near").unwrap();
        read_until(&mut ways, |changes| changes.link == Link::Gone);
        assert_eq!(ways.way_to(None, to(FAR[0])), Err(NoWay::Refused(Errno::NETUNREACH)));
    });
}

#[test]
fn read_events__of_a_port_that_leaves_its_bridge_is_not_the_end_of_the_device() {
    between_hosts(|_| {
        let mut ways = open();
        ip("link add bridge type bridge").unwrap();
        ip("link set near master bridge").unwrap();
        ip("link set near nomaster").unwrap();
        ip("route add 10.77.0.0/16 via 10.9.0.2").unwrap();
        // The route's event follows all others.
        read_until(&mut ways, |changes| changes.must_ask_again);
        ways.read_events();
        assert_ne!(ways.link(), Link::Gone);
    });
}

#[test]
fn read_events__after_a_loss_asks_for_everything_again() {
    between_hosts(|_| {
        let mut ways = open();
        // More events wait than one call reads.
        SockRef::from(&ways.fd()).set_recv_buffer_size(1 << 20).unwrap();
        let many: String = (0..4_000)
            .map(|number| {
                let (high, low) = (number / 250, number % 250 + 1);
                format!("neigh replace 10.9.{high}.{low} lladdr {OTHER_MAC:?} nud noarp dev near\n")
            })
            .collect();
        petrel_netns::run("ip", &["-batch", "-"], &many).unwrap();
        ip("link set near mtu 1400").unwrap();
        ip("link set near down").unwrap();
        // The event of the link was lost as well: its state is asked for. Events from before the loss are not listed, since they may have
        // been followed by lost ones.
        let mut changes = ways.read_events();
        assert!(changes.must_ask_again);
        while changes.must_ask_again {
            assert!(changes.neighbours.is_empty() && changes.link == Link::Down, "{changes:?}");
            changes = ways.read_events();
        }
        ip("link set near up").unwrap();
        read_until(&mut ways, |changes| changes.link == Link::Up);
        ip(&format!("neigh replace {} lladdr {FAR_MAC:?} nud permanent dev near", FAR[0])).unwrap();
        assert_eq!(ways.way_to(None, to(FAR[0])).unwrap().mtu_bytes, 1_400);
    });
}

/// A process with the right to do so may write to any socket of netlink.
#[test]
fn read_events__ignores_lies_of_other_processes() {
    between_hosts(|_| {
        let mut ways = open();
        while ways.link() != Link::Up {
            read_until(&mut ways, |changes| changes.link == Link::Up);
        }
        let mut lie = vec![0; 28];
        lie[4..6].copy_from_slice(&libc::RTM_NEWNEIGH.to_ne_bytes());
        lie[16] = libc::AF_INET as u8;
        lie[20..24].copy_from_slice(&index_of("near").to_ne_bytes());
        lie[24..26].copy_from_slice(&libc::NUD_REACHABLE.to_ne_bytes());
        lie.extend([8, 0, 1, 0, 10, 9, 0, 2, 10, 0, 2, 0, 6, 6, 6, 6, 6, 6, 0, 0]);
        let bytes = lie.len() as u32;
        lie[..4].copy_from_slice(&bytes.to_ne_bytes());
        let victim = SocketAddrNetlink::try_from(getsockname(ways.fd()).unwrap()).unwrap();
        let liar = rustix::net::socket(
            rustix::net::AddressFamily::NETLINK,
            rustix::net::SocketType::RAW,
            None,
        );
        let victim = SocketAddrNetlink::new(victim.pid(), 0);
        sendto(liar.unwrap(), &lie, SendFlags::empty(), &victim).unwrap();
        // The truth follows.
        ip("neigh replace 10.9.0.3 lladdr 02:00:00:00:00:03 nud permanent dev near").unwrap();
        let mut heard = Vec::new();
        while heard.iter().all(|neighbour: &Neighbour| neighbour.ip != to("10.9.0.3").ip()) {
            assert!(is_readable(&ways));
            heard.extend(ways.read_events().neighbours);
        }
        assert!(heard.iter().all(|neighbour| neighbour.ip != to("10.9.0.2").ip()), "{heard:?}");
    });
}

#[test]
fn way_to__unasked_answers_of_a_liar_change_no_way() {
    between_hosts(|host| {
        ip(&format!("neigh replace {} lladdr {FAR_MAC:?} nud permanent dev near", FAR[0])).unwrap();
        let mut liar = host.spawn(|| Raw::open("far")).join().unwrap();
        for number in [2, 3] {
            // ARP: this address has the liar's hardware address.
            let mut lie = [NEAR_MAC.0, OTHER_MAC.0].concat();
            lie.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
            lie.extend(
                [&OTHER_MAC.0[..], &[10, 9, 0, number], &NEAR_MAC.0, &[10, 9, 0, 1]].concat(),
            );
            liar.send(&lie);
        }
        // A datagram that follows the lies.
        let near = UdpSocket::bind((NEAR[0], 0)).unwrap();
        near.set_read_timeout(Some(TIME_MAX)).unwrap();
        let honest = far_socket(host, FAR[0]);
        honest.send_to(b"x", near.local_addr().unwrap()).unwrap();
        near.recv(&mut [0]).unwrap();
        let mut ways = open();
        assert_eq!(ways.way_to(None, to(FAR[0])), Ok(direct(NEAR[0], FAR[0])));
        let unknown = "10.9.0.3";
        let unresolved = NoWay::Unresolved(unknown.parse().unwrap());
        assert_eq!(ways.way_to(None, to(unknown)), Err(unresolved));
    });
}
