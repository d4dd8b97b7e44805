//! Datagrams by AF_XDP between two network namespaces: with each other, and with kernel sockets.

use std::net::Ipv4Addr;
use std::thread;

use petrel_netns::Host;
use petrel_skip::{Need, skip};

use super::*;
use crate::device::xdp::{Mode, Queues, XdpConfig};

const HERE: Ipv4Addr = Ipv4Addr::new(10, 91, 0, 1);
const THERE: Ipv4Addr = Ipv4Addr::new(10, 91, 0, 2);

/// Runs a test on a thread in a namespace that is joined with a host by the veth devices `here` and `there`, of two queues each.
fn between_hosts(inside: impl FnOnce(Host) + Send + 'static) {
    let test = thread::spawn(|| {
        let hosts = petrel_netns::leave().and_then(|()| {
            let (host, queues) = (Host::new()?, "numrxqueues 2 numtxqueues 2");
            let peer = format!("peer name there netns {} {queues}", host.id());
            petrel_netns::ip(&format!("link add here {queues} type veth {peer}"))?;
            petrel_netns::bring_up("here", HERE)?;
            host.bring_up("there", THERE)?;
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
    UdpConfig { device, ..by_kernel(ip) }
}

fn by_kernel(ip: Ipv4Addr) -> UdpConfig {
    UdpConfig { bind: (ip, 0).into(), ..UdpConfig::default() }
}

/// A hub on this host, and two leaves on the other.
struct Hosts {
    there: Host,
    hub: UdpConfig,
    leaves: [UdpConfig; 2],
}

impl Harness for Hosts {
    type T = Udp;

    fn medium(&self) -> Medium {
        Medium::lossy_when_full().with_capacity(70_000)
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
    UdpConfig { device, ..by_kernel(THERE) }
}

fn conforms_between_hosts(hub: UdpConfig, leaves: [UdpConfig; 2]) {
    between_hosts(|there| {
        let mut hosts = Hosts { there, hub, leaves };
        conformance::run_all(&mut hosts);
        conformance::run_threaded(&mut hosts);
    });
}

#[test]
fn conformance__by_devices_at_all_ends() {
    // Frames of the hub leave by its first queue: those to the second leaf miss its device.
    for mode in [Mode::Auto, Mode::Native] {
        conforms_between_hosts(by_xdp(HERE, mode), [0, 1].map(|queue| of_queue(queue, mode)));
    }
}

#[test]
fn conformance__by_a_device_and_kernel_sockets() {
    conforms_between_hosts(by_xdp(HERE, Mode::Auto), [by_kernel(THERE), of_queue(1, Mode::Auto)]);
    conforms_between_hosts(by_kernel(HERE), [of_queue(0, Mode::Auto), of_queue(1, Mode::Auto)]);
    let without_gso = UdpConfig { gso: false, gro: false, ..by_kernel(THERE) };
    conforms_between_hosts(by_xdp(HERE, Mode::Auto), [without_gso.clone(), without_gso]);
}

/// Sends frames to the only peer, and returns those that arrive.
fn carry(from: &mut Udp, to_peer: PeerId, to: &mut Udp, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut heard = Vec::new();
    for frame in frames {
        from.tx_burst(&[TxFrame { peer: to_peer, head: frame, body: &[] }]);
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let before = heard.len();
        while heard.len() == before && std::time::Instant::now() < end {
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
        let add = format!("link add gone type veth peer name far netns {}", there.id());
        petrel_netns::ip(&add).unwrap();
        petrel_netns::ip("link set gone up").unwrap();
        there.run("ip", &["link", "set", "far", "up"], "").unwrap();
        let device =
            Device::Xdp(XdpDevice { interface: Some("gone".to_owned()), ..XdpDevice::default() });
        let mut hub = Udp::bind(UdpConfig { device, ..by_kernel(HERE) }).unwrap();
        assert!(matches!(hub.device(), Some(DeviceState::On(_))), "{:?}", hub.device());
        let to_hub = link(&hub);
        let far = there.spawn(move || {
            let mut leaf = Udp::bind(by_kernel(THERE)).unwrap();
            let peer = leaf.add_peer(to_hub).unwrap();
            (leaf, peer)
        });
        let (mut leaf, peer) = far.join().unwrap();
        hub.add_peer(link(&leaf)).unwrap();
        let frames = |number: u8| vec![vec![0x10 | number; 500]; 20];
        assert_eq!(carry(&mut leaf, peer, &mut hub, &frames(1)), frames(1));
        petrel_netns::ip("link del gone").unwrap();
        let is_state = |hub: &mut Udp, is_on: bool| {
            let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
            while matches!(hub.device(), Some(DeviceState::On(_))) != is_on {
                assert!(std::time::Instant::now() < end, "{:?}", hub.device());
                hub.rx_burst(8, |_, _| ());
            }
        };
        is_state(&mut hub, false);
        assert_eq!(hub.stats().device_losses, 1);
        assert_eq!(carry(&mut leaf, peer, &mut hub, &frames(2)), frames(2));
        petrel_netns::ip(&add).unwrap();
        petrel_netns::ip("link set gone up").unwrap();
        is_state(&mut hub, true);
        assert_eq!(carry(&mut leaf, peer, &mut hub, &frames(3)), frames(3));
    });
}
