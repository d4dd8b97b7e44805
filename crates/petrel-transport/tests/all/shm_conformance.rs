//! The shared-memory transport passes the suite for all transports, with large and small rings,
//! sleeping or polling for ever.
#![cfg(not(loom))]
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use petrel_transport::conformance::{self, End, Harness, Medium, Star};
use petrel_transport::shm::{Segment, Shm, ShmConfig, ShmLink, Side};
use petrel_transport::wake::Waker;
use petrel_transport::{PeerId, Transport};

struct Rings(ShmConfig);

impl Rings {
    fn end(&self) -> Shm {
        Shm::new(&self.0, Waker::new().unwrap())
    }

    /// Links two endpoints. Returns the peer ids, of `b` at `a` and of `a` at `b`.
    fn link(&self, a: &mut Shm, b: &mut Shm) -> (PeerId, PeerId) {
        let owned = |fd: &dyn AsFd| fd.as_fd().try_clone_to_owned().unwrap();
        let segment = Segment::create(&self.0).unwrap();
        let opened = Segment::from_fd(owned(&segment)).unwrap();
        let (bell_a, bell_b) = UnixStream::pair().unwrap();
        let at_a = a.add_peer(ShmLink::new(segment, Side::Creator, bell_a)).unwrap();
        let at_b = b.add_peer(ShmLink::new(opened, Side::Opener, bell_b)).unwrap();
        (at_a, at_b)
    }
}

impl Harness for Rings {
    type T = Shm;

    fn medium(&self) -> Medium {
        // A quarter of the ring may be skipped, and small records have larger headers than bodies.
        Medium::lossless().with_capacity(self.0.ring_bytes / 4)
    }

    fn star(&mut self) -> Star<Shm> {
        let mut hub = self.end();
        let mut peers = [PeerId(0); 2];
        let leaves = std::array::from_fn(|index| {
            let mut transport = self.end();
            let (at_hub, peer) = self.link(&mut hub, &mut transport);
            peers[index] = at_hub;
            End { transport, peer }
        });
        Star { hub, peers, leaves }
    }
}

#[test]
fn conformance__with_default_rings() {
    let mut rings = Rings(ShmConfig::default());
    conformance::run_all(&mut rings);
    conformance::run_threaded(&mut rings);
}

#[test]
fn conformance__with_small_rings() {
    let small = ShmConfig { ring_bytes: 64 << 10, max_frame_bytes: 1232, ..ShmConfig::default() };
    let mut rings = Rings(small);
    conformance::run_all(&mut rings);
    conformance::run_threaded(&mut rings);
}

#[test]
fn conformance__with_frames_of_a_quarter_of_the_ring() {
    let large = ShmConfig { ring_bytes: 64 << 10, max_frame_bytes: 16376, ..ShmConfig::default() };
    conformance::run_all(&mut Rings(large));
}

#[test]
fn conformance__of_endpoints_that_never_sleep() {
    let mut rings = Rings(ShmConfig { never_sleeps: true, ..ShmConfig::default() });
    conformance::run_all(&mut rings);
    conformance::run_threaded(&mut rings);
}
