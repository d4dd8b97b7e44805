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

#[test]
fn conformance__by_xdp_at_all_ends() {
    between_hosts(|there| {
        let hub = by_xdp(HERE, Mode::Auto);
        // The second leaf finds each queue taken, unless it is content with the second one.
        let of_queue = |queue| {
            let config = XdpConfig {
                chunks: 512,
                queues: Queues::List(vec![queue]),
                ..XdpConfig::default()
            };
            let device = Device::Xdp(XdpDevice { interface: None, is_required: true, config });
            UdpConfig { device, ..by_kernel(THERE) }
        };
        let mut hosts = Hosts { there, hub, leaves: [0, 1].map(of_queue) };
        conformance::run_all(&mut hosts);
        conformance::run_threaded(&mut hosts);
    });
}
