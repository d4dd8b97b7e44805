//! Datagrams by AF_XDP between two network namespaces: with each other, and with kernel sockets.

use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

use petrel_netns::Host;
use petrel_skip::{Need, skip};

use super::further::FromFurtherPorts;
use super::*;
use crate::device::ether::frame::{MacAddr, Template};
use crate::device::ether::tests::network::Raw;
use crate::device::xdp::{Mode, Queues, XdpConfig};

const HERE: Ipv4Addr = Ipv4Addr::new(10, 91, 0, 1);
const MAC: &str = "02:00:00:00:00:0";
const THERE: Ipv4Addr = Ipv4Addr::new(10, 91, 0, 2);

/// Far beyond the time of any step on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a test on a thread in a namespace that is joined with a host by the veth devices `here` and `there`, of two queues each.
fn between_hosts(inside: impl FnOnce(Host) + Send + 'static) {
    let test = thread::spawn(|| {
        let hosts = petrel_netns::leave().and_then(|()| {
            let (host, queues) = (Host::new()?, "numrxqueues 2 numtxqueues 2");
            let peer = format!("peer name there address {MAC}2 netns {} {queues}", host.id());
            petrel_netns::ip(&format!("link add here address {MAC}1 {queues} type veth {peer}"))?;
            petrel_netns::bring_up("here", HERE)?;
            host.bring_up("there", THERE)?;
            // Known neighbours: the first datagram would wait in the kernel for the answer, and the next ones overtake it by the device.
            petrel_netns::ip(&format!("neighbour add {THERE} lladdr {MAC}2 dev here"))?;
            let arguments = format!("neighbour add {HERE} lladdr {MAC}1 dev there");
            host.run("ip", &arguments.split(' ').collect::<Vec<_>>(), "")?;
            Ok(host)
        });
        match hosts {
            Ok(host) => inside(host),
            Err(why) => skip(Need::Namespaces, why),
        }
    });
    if let Err(panic) = test.join() {
        std::panic::resume_unwind(panic);
    }
}

fn by_xdp(ip: Ipv4Addr, mode: Mode) -> UdpConfig {
    let config = XdpConfig { mode, chunks: 512, ..XdpConfig::default() };
    let device = Device::Xdp(XdpDevice { interface: None, is_required: true, config });
    UdpConfig { device: Some(device), ..by_kernel(ip) }
}

fn by_kernel(ip: Ipv4Addr) -> UdpConfig {
    UdpConfig { bind: (ip, 0).into(), ..UdpConfig::default() }
}

/// A hub on this host, and two leaves on the other.
struct Hosts {
    there: Host,
    hub: UdpConfig,
    leaves: [UdpConfig; 2],
    /// Whether the datagrams of one end take two ways: a kernel's trains are too large for the device.
    reorders: bool,
}

impl Harness for Hosts {
    type T = Udp;

    fn medium(&self) -> Medium {
        let medium = Medium::lossy_when_full().with_capacity(70_000);
        if self.reorders { medium.without_order() } else { medium }
    }

    fn star(&mut self) -> Star<Udp> {
        let mut hub = Udp::bind(self.hub.clone()).unwrap();
        let to_hub = link(&hub);
        let config = self.leaves.clone();
        let leaves = self.there.spawn(move || {
            config.map(|config| {
                let mut leaf = Udp::bind(config).unwrap();
                let peer = leaf.add_peer(UdpLink { sealed: None, ..to_hub }).unwrap();
                End { transport: leaf, peer }
            })
        });
        let leaves = leaves.join().unwrap();
        let peers =
            [&leaves[0], &leaves[1]].map(|leaf| hub.add_peer(link(&leaf.transport)).unwrap());
        Star { hub, peers, leaves }
    }
}

/// The second leaf finds every queue taken, unless each is content with one.
fn of_queue(queue: u32, mode: Mode) -> UdpConfig {
    let config =
        XdpConfig { mode, chunks: 512, queues: Queues::List(vec![queue]), ..XdpConfig::default() };
    let device = Device::Xdp(XdpDevice { interface: None, is_required: true, config });
    UdpConfig { device: Some(device), ..by_kernel(THERE) }
}

fn conforms_between_hosts(hub: UdpConfig, leaves: [UdpConfig; 2], reorders: bool) {
    between_hosts(move |there| {
        let mut hosts = Hosts { there, hub, leaves, reorders };
        conformance::run_all(&mut hosts);
        conformance::run_threaded(&mut hosts);
    });
}

#[test]
fn conformance__by_devices_at_all_ends() {
    // Frames of the hub leave by its first queue: those to the second leaf miss its device.
    for mode in [Mode::Auto, Mode::Native] {
        let leaves = [0, 1].map(|queue| of_queue(queue, mode));
        conforms_between_hosts(by_xdp(HERE, mode), leaves, false);
    }
}

#[test]
fn conformance__by_a_device_and_kernel_sockets() {
    let (hub, leaf) = (|| by_xdp(HERE, Mode::Auto), |queue| of_queue(queue, Mode::Auto));
    let without_trains = UdpConfig { gso: false, gro: false, ..by_kernel(THERE) };
    conforms_between_hosts(hub(), [without_trains.clone(), without_trains], false);
    conforms_between_hosts(hub(), [by_kernel(THERE), leaf(1)], true);
    conforms_between_hosts(by_kernel(HERE), [leaf(0), leaf(1)], true);
}

#[test]
fn conformance__from_further_ports_by_devices() {
    between_hosts(|there| {
        let further = |config| UdpConfig { further_ports: 1, ..config };
        let leaves = [0, 1].map(|queue| further(of_queue(queue, Mode::Auto)));
        let hub = further(by_xdp(HERE, Mode::Auto));
        let mut hosts = FromFurtherPorts(Hosts { there, hub, leaves, reorders: false });
        conformance::run_all(&mut hosts);
        let Star { mut hub, peers, .. } = hosts.star();
        for size in [40, 1_000] {
            hub.tx_burst(&[TxFrame { peer: peers[0], head: &vec![0x10; size], body: &[] }]);
        }
        assert_eq!(hub.stats().tx_device_datagrams, 2);
    });
}

/// Sends frames to the only peer, and returns those that arrive.
fn carry(from: &mut Udp, to_peer: PeerId, to: &mut Udp, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut heard = Vec::new();
    for frame in frames {
        from.tx_burst(&[TxFrame { peer: to_peer, head: frame, body: &[] }]);
        let end = Instant::now() + PATIENCE;
        let before = heard.len();
        while heard.len() == before && Instant::now() < end {
            to.rx_burst(8, |_, frame| heard.push(frame.to_vec()));
            from.rx_burst(8, |_, _| panic!("an echo"));
        }
    }
    heard
}

#[test]
fn a_device_that_is_removed_gives_way_to_the_kernel_and_comes_back() {
    between_hosts(|there| {
        // A second pair of devices, whose removal leaves the first one.
        let to_far = Ipv4Addr::new(10, 92, 0, 1);
        let far = Ipv4Addr::new(10, 92, 0, 2);
        let id = there.id();
        let add = move || {
            petrel_netns::ip(&format!("link add gone type veth peer name far netns {id}")).unwrap();
            petrel_netns::bring_up("gone", to_far).unwrap();
        };
        add();
        there.bring_up("far", far).unwrap();
        let device =
            Device::Xdp(XdpDevice { interface: Some("gone".to_owned()), ..XdpDevice::default() });
        let config = UdpConfig { device: Some(device), ..by_kernel(Ipv4Addr::UNSPECIFIED) };
        let mut hub = Udp::bind(config).unwrap();
        let port = hub.local_addr().port();
        let leaf = |from: Ipv4Addr, to: Ipv4Addr| {
            let leaf = there.spawn(move || {
                let mut leaf = Udp::bind(by_kernel(from)).unwrap();
                let addr = (to, port).into();
                let hub = UdpLink::to(addr);
                let peer = leaf.add_peer(hub).unwrap();
                (leaf, peer)
            });
            leaf.join().unwrap()
        };
        let frames = |number: u8| vec![vec![0x10 | number; 500]; 20];
        let (mut by_device, to_hub) = leaf(far, to_far);
        hub.add_peer(link(&by_device)).unwrap();
        assert_eq!(carry(&mut by_device, to_hub, &mut hub, &frames(1)), frames(1));
        assert_eq!(hub.stats().rx_device_datagrams, 20);

        petrel_netns::ip("link del gone").unwrap();
        let until = |hub: &mut Udp, is_on: bool| {
            let end = Instant::now() + PATIENCE;
            while matches!(hub.device(), Some(DeviceState::On(_))) != is_on {
                assert!(Instant::now() < end, "{:?}", hub.device());
                hub.rx_burst(8, |_, _| ());
            }
        };
        until(&mut hub, false);
        assert_eq!(hub.stats().device_losses, 1);
        let (mut by_kernel, to_hub_here) = leaf(THERE, HERE);
        hub.add_peer(link(&by_kernel)).unwrap();
        assert_eq!(carry(&mut by_kernel, to_hub_here, &mut hub, &frames(2)), frames(2));

        add();
        there.bring_up("far", far).unwrap();
        until(&mut hub, true);
        assert_eq!(carry(&mut by_device, to_hub, &mut hub, &frames(3)), frames(3));
        assert_eq!(hub.stats().rx_device_datagrams, 40);
    });
}

/// A datagram from an address to the hub, and the place of the UDP header.
fn forged(from: (Ipv4Addr, u16), to_port: u16) -> Vec<u8> {
    let [there, here] = [2, 1].map(|last| MacAddr([2, 0, 0, 0, 0, last]));
    let template = Template::new(from.0.into(), (HERE, to_port).into(), there, here);
    let mut frame = vec![0x10; template.head_bytes() + 40];
    template.write(&mut frame, 40, from.1, false);
    frame
}

/// Changes a frame, and puts the checksum of the IPv4 header right.
fn changed(mut frame: Vec<u8>, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    change(&mut frame);
    let head_bytes = usize::from(frame[14] & 15) * 4;
    frame[24..26].fill(0);
    let words = frame[14..14 + head_bytes].as_chunks::<2>().0.iter();
    let sum = words.map(|word| u32::from(u16::from_be_bytes(*word))).sum::<u32>();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

#[test]
fn frames__of_strangers_and_liars_reach_no_handler_and_hold_up_no_peer() {
    between_hosts(|there| {
        let mut hub = Udp::bind(by_xdp(HERE, Mode::Auto)).unwrap();
        let (to_hub, port) = (link(&hub), hub.local_addr().port());
        let peer = there.spawn(move || {
            let mut leaf = Udp::bind(by_kernel(THERE)).unwrap();
            let to_hub = leaf.add_peer(to_hub).unwrap();
            (leaf, to_hub, Raw::open("there"))
        });
        let (mut leaf, to_hub, mut raw) = peer.join().unwrap();
        hub.add_peer(link(&leaf)).unwrap();
        let (peer, stranger) =
            ((THERE, leaf.local_addr().port()), (Ipv4Addr::new(10, 91, 0, 77), 5));
        let of = |from| forged(from, port);
        let unknown = [
            of(stranger),
            of((THERE, peer.1 ^ 1)),
            // From another network, as a router's packets are.
            of((Ipv4Addr::new(192, 0, 2, 1), peer.1)),
        ];
        let impossible = [
            of((HERE, port)),
            of((Ipv4Addr::LOCALHOST, 5)),
            of((Ipv4Addr::UNSPECIFIED, 5)),
            of((Ipv4Addr::BROADCAST, 5)),
            of((Ipv4Addr::new(224, 0, 0, 1), 5)),
            // Lengths that lie, of IP and UDP.
            changed(of(peer), |frame| frame[16] = 0xff),
            changed(of(peer), |frame| frame[17] -= 1),
            changed(of(peer), |frame| frame[39] += 1),
            changed(of(peer), |frame| frame[39] -= 1),
            changed(of(peer), |frame| frame[38..40].fill(0)),
            changed(of(peer), |frame| frame.truncate(60)),
        ];
        let wrong_sums =
            [changed(of(peer), |frame| frame[60] ^= 1), changed(of(peer), |frame| frame[37] ^= 1)];
        // Fragments, and a tag of a network that there is not here.
        let left_to_kernel = [
            // Options go to the kernel's socket, which is connected to the only peer.
            changed(of(stranger), |frame| {
                frame[14] = 0x46;
                frame[17] += 4;
                frame.splice(34..34, [1; 4]);
            }),
            changed(of(peer), |frame| frame[20] = 0x20),
            changed(of(peer), |frame| frame[21] = 4),
            [&of(peer)[..12], &[0x81, 0, 0, 5], &of(peer)[12..]].concat(),
        ];
        let attacks: [&[Vec<u8>]; 4] = [&unknown, &impossible, &wrong_sums, &left_to_kernel];
        let honest = |number: usize| vec![vec![0x20 | number as u8; 300]; 2];
        for _ in 0..50 {
            for (kind, frames) in attacks.iter().enumerate() {
                frames.iter().for_each(|frame| raw.send(frame));
                assert_eq!(carry(&mut leaf, to_hub, &mut hub, &honest(kind)), honest(kind));
            }
        }
        // The endpoint asks the kernel's socket after some polls of an empty device.
        (0..100).for_each(|_| _ = hub.rx_burst(8, |_, _| panic!("no handler gets a lie")));
        let stats = hub.stats();
        assert_eq!(stats.rx_dropped_unknown_peer, 50 * unknown.len() as u64, "{stats:?}");
        assert_eq!(stats.rx_dropped_malformed, 50 * impossible.len() as u64, "{stats:?}");
        // The second one's port is not the hub's: the program leaves the frame to the kernel.
        assert_eq!(stats.rx_dropped_checksum, 50, "{stats:?}");
    });
}
