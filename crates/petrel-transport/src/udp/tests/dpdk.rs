//! Datagrams by DPDK: all endpoints of this process share one port, whose frames come back (net_ring).

use std::time::{Duration, Instant};

use petrel_skip::{Need, skip};

use super::*;
use crate::device::dpdk::compile_shim;

const RING: &str = "--no-huge --no-pci --no-shconf --no-telemetry --vdev=net_ring0";

/// Far beyond the time of any step on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Compiles the shim beside this program. Returns false on a host without DPDK.
fn has_shim() -> bool {
    let program = std::env::current_exe().unwrap();
    match compile_shim(program.parent().unwrap()) {
        Ok(_) => true,
        Err(why) => {
            skip(Need::Dpdk, why);
            false
        }
    }
}

fn by_dpdk(ip: &str, arguments: &str) -> UdpConfig {
    let device = DpdkDevice { arguments: arguments.to_owned(), is_required: true };
    UdpConfig { device: Some(Device::Dpdk(device)), ..bind_to(ip) }
}

/// Endpoints with addresses of their own, as on several hosts.
struct Ring;

impl Ring {
    /// Sends frames until they leave by the device. The port keeps the neighbours for later endpoints.
    fn settle(from: &mut Udp, peer: PeerId, to: &mut Udp) {
        let end = Instant::now() + PATIENCE;
        let mut heard = 0;
        for sent in 1.. {
            from.tx_burst(&[frame(peer, &[1; 100])]);
            while heard < sent {
                assert!(Instant::now() < end, "{:?} {:?}", from.device(), from.stats());
                to.rx_burst(8, |_, _| heard += 1);
                from.rx_burst(8, |_, _| panic!("an echo"));
            }
            if from.stats().tx_device_datagrams > 0 {
                return;
            }
        }
    }
}

impl Harness for Ring {
    type T = Udp;

    fn medium(&self) -> Medium {
        Medium::lossy_when_full().with_capacity(70_000)
    }

    fn star(&mut self) -> Star<Udp> {
        let mut hub = Udp::bind(by_dpdk("127.0.0.2", RING)).unwrap();
        let mut join = |ip| {
            let mut leaf = Udp::bind(by_dpdk(ip, RING)).unwrap();
            let to_leaf = hub.add_peer(link(&leaf)).unwrap();
            let peer = leaf.add_peer(link(&hub)).unwrap();
            (to_leaf, End { transport: leaf, peer })
        };
        let (first, second) = (join("127.0.0.3"), join("127.0.0.4"));
        Star { peers: [first.0, second.0], leaves: [first.1, second.1], hub }
    }
}

#[test]
fn conformance__by_dpdk() {
    if has_shim() {
        let Star { mut hub, peers, leaves } = Ring.star();
        for (End { mut transport, peer }, to_leaf) in leaves.into_iter().zip(peers) {
            Ring::settle(&mut transport, peer, &mut hub);
            Ring::settle(&mut hub, to_leaf, &mut transport);
        }
        drop(hub);
        conformance::run_all(&mut Ring);
        conformance::run_threaded(&mut Ring);
        // A process starts DPDK once.
        let other = Udp::bind(by_dpdk("127.0.0.5", "--no-huge --no-pci")).map(|_| ()).unwrap_err();
        assert!(other.to_string().contains("with other arguments: "), "{other}");
    }
}
