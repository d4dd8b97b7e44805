//! The datapath allocates nothing after its start.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use petrel_transport::buf::{BufPool, PoolConfig};
use petrel_transport::conformance::sealed_link;
use petrel_transport::udp::{Udp, UdpConfig, UdpLink};
use petrel_transport::{PeerId, Transport, TxFrame};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, counting the calls of each thread.
struct Counting;

// SAFETY: every call goes to the system's allocator unchanged. Counting does not allocate: the
// thread-local is initialised at compile time and needs no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: by this function's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: by this function's contract.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations_of(act: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    act();
    ALLOCATIONS.get() - before
}

/// Sends bursts of small and of large frames and receives all of them.
fn exchange(a: &mut Udp, to_b: PeerId, b: &mut Udp, bytes: &[u8]) {
    for len in [40, 900, 4000] {
        let frame = TxFrame { peer: to_b, head: &bytes[..16], body: &bytes[16..len] };
        for count in [1, 10] {
            a.tx_burst(&[frame; 10][..count]);
            let mut received = 0;
            while received < count {
                b.wait(Some(10_000_000_000));
                received += b.rx_burst(64, |_, frame| assert_eq!(frame.len(), len));
            }
        }
    }
}

#[test]
fn udp_bursts_allocate_nothing() {
    for (offload, is_sealed) in [(true, false), (false, false), (true, true), (false, true)] {
        let bind = || {
            let config = UdpConfig { gso: offload, gro: offload, ..UdpConfig::default() };
            Udp::bind(config).unwrap()
        };
        let (mut a, mut b) = (bind(), bind());
        let link = |to: &Udp, keys| UdpLink {
            addr: to.local_addr(),
            max_frame: None,
            ecn: false,
            source: None,
            sealed: is_sealed.then(|| Box::new(keys)),
        };
        let [at_a, at_b] = sealed_link(1, [2, 3]);
        let to_b = a.add_peer(link(&b, at_a)).unwrap();
        b.add_peer(link(&a, at_b)).unwrap();
        let bytes = [0x1A; 4000];
        let count = allocations_of(|| (0..50).for_each(|_| exchange(&mut a, to_b, &mut b, &bytes)));
        assert_eq!(count, 0, "with offload {offload}, sealed {is_sealed}");
        assert!(b.stats().rx_frames > 0);
    }
}

#[test]
fn buffers_are_reused_without_allocating() {
    let pool = BufPool::new(PoolConfig::default());
    let sizes = [32, 1000, 100_000, 8 << 20];
    let use_all = || sizes.map(|size| pool.alloc(size, size / 4000 + 1).unwrap());
    drop(use_all());
    assert_eq!(allocations_of(|| (0..100).for_each(|_| drop(use_all()))), 0);
}
