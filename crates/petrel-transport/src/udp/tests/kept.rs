//! Frames for which the kernel has no room, from buffers that return to the pool: kept frames are
//! copies.

use super::*;
use crate::buf::{BufPool, PoolConfig};

/// A frame with all bytes derived from the number. Small frames are copied into datagrams; large
/// frames are sent in place.
fn bytes_of(number: u32) -> Vec<u8> {
    let len = 12 + number as usize * 677 % 3_900;
    let rest = (5..len).map(|at| (number as usize * 7 + at) as u8);
    // Not the first byte of a bundle.
    [0x10].into_iter().chain(number.to_le_bytes()).chain(rest).collect()
}

/// The frames of a datagram that arrived.
fn frames_in(datagram: &[u8]) -> impl Iterator<Item = &[u8]> {
    crate::bundle::frames(datagram).expect("a datagram of the transport's")
}

#[test]
fn flush__keeps_copies_of_frames_whose_buffers_go_back_to_their_pool() {
    let mut ends = WithFullSocket::new();
    let pool = BufPool::new(PoolConfig { poison: true, ..PoolConfig::default() });
    let (mut taken, mut arrived) = (0, 0);
    for round in 0..2_000 {
        // A burst of a few frames from fresh buffers, which are then freed.
        let mut burst = Vec::new();
        for _ in 0..1 + round % 5 {
            let bytes = bytes_of(taken);
            let mut buffer = pool.alloc(bytes.len(), 2).unwrap();
            buffer.set_message(&bytes);
            let (head, body) = buffer.data().split_at(bytes.len().min(24));
            // SAFETY: the buffers of a burst stay in place until it is flushed.
            if !unsafe { ends.udp.push(ends.peer, head, body) } {
                break;
            }
            taken += 1;
            burst.push(buffer);
        }
        ends.udp.flush();
        drop(burst);
        // The far end reads rarely, to make backlogs last for several bursts.
        if round % 3 == 0 {
            arrived = take_arrived(&ends, arrived);
        }
    }
    while ends.udp.room.is_backlog() {
        arrived = take_arrived(&ends, arrived);
        ends.udp.flush();
    }
    assert_eq!(take_arrived(&ends, arrived), taken);
    let stats = ends.udp.stats();
    assert!(stats.tx_kept > 100 && stats.tx_blocked > 100, "{stats:?}");
    assert_eq!((stats.tx_frames, stats.tx_dropped_error), (u64::from(taken), 0));
}

/// Checks the arrived frames: the next ones, in order and unchanged.
fn take_arrived(ends: &WithFullSocket, mut next: u32) -> u32 {
    for datagram in ends.arrived() {
        for frame in frames_in(&datagram) {
            assert!(frame == bytes_of(next), "frame {next} differs");
            next += 1;
        }
    }
    next
}
