//! Tests of the simulated network: order, cuts, ends and resets.

use std::io::ErrorKind;
use std::net::SocketAddr;

use super::*;

const SECOND_NS: u64 = 1_000_000_000;

struct Pair {
    net: NetRef,
    server: ProcessId,
    near: SocketId,
    far: SocketId,
}

fn conditions(choppy: u32) -> Conditions {
    Conditions {
        delay_ns: (10_000, 500_000),
        window_bytes: 1_000,
        choppy: Probability::percent(choppy),
        harsh_resets: Probability::NEVER,
        scarce: Probability::NEVER,
        scarce_shm: Probability::NEVER,
        family: Family::V4,
        machine_hosts: 1,
        mtu: 1_500,
    }
}

fn address() -> SocketAddr {
    SocketAddr::new(Family::V4.address(1), 7)
}

/// Makes a client on one host, connected to a server on another.
fn pair(choppy: u32) -> Pair {
    let net = Net::new(Rng::new(3), conditions(choppy), 2);
    let mut inner = net.borrow_mut();
    let (client, server) = (inner.add_process(0, (64, 64)), inner.add_process(1, (64, 64)));
    inner.listen(server, address(), 8, 0).unwrap();
    let near = inner.connect(client, address()).unwrap();
    inner.register(near, 1).unwrap();
    assert!(inner.peer_addr(near).is_err());
    inner.advance(SECOND_NS);
    let (far, _) = inner.accept(server, address()).unwrap();
    inner.register(far, 1).unwrap();
    assert!(inner.peer_addr(near).is_ok());
    drop(inner);
    Pair { net, server, near, far }
}

fn read_all(net: &mut Net, id: SocketId, into: &mut Vec<u8>) -> Option<ErrorKind> {
    let mut buffer = [0; 64];
    loop {
        match net.read(id, &mut buffer) {
            Ok(0) => return None,
            Ok(count) => into.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Some(error.kind()),
        }
    }
}

#[test]
fn write__comes_in_order_however_it_is_cut_and_no_more_than_the_window() {
    let Pair { net, near, far, .. } = pair(60);
    let mut net = net.borrow_mut();
    let all: Vec<u8> = (0..20_000_u32).map(|number| (number % 251) as u8).collect();
    let (mut sent, mut received) = (0, Vec::new());
    while received.len() < all.len() {
        match net.write(near, &all[sent..]) {
            Ok(count) => sent += count,
            Err(error) => {
                assert!([ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&error.kind()));
            }
        }
        assert!(sent - received.len() <= 1_000);
        let now_ns = net.now_ns();
        net.advance(now_ns + 100_000);
        assert_eq!(read_all(&mut net, far, &mut received), Some(ErrorKind::WouldBlock));
    }
    assert_eq!(received, all);
}

#[test]
fn cut__holds_everything_back_until_it_heals() {
    let Pair { net, near, far, .. } = pair(0);
    let mut net = net.borrow_mut();
    net.cut(1, 0);
    assert_eq!(net.write(near, b"one").unwrap(), 3);
    net.advance(100 * SECOND_NS);
    let mut received = Vec::new();
    assert_eq!(read_all(&mut net, far, &mut received), Some(ErrorKind::WouldBlock));
    net.heal(0, 1);
    assert_eq!(net.write(near, b"two").unwrap(), 3);
    net.advance(101 * SECOND_NS);
    read_all(&mut net, far, &mut received);
    assert_eq!(received, b"onetwo");
}

#[test]
fn heal__keeps_the_order_of_held_and_later_bytes() {
    let Pair { net, near, far, .. } = pair(0);
    let mut net = net.borrow_mut();
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    // Every round heals while some bytes wait at the cut and some are still in flight.
    for round in 0..50 {
        net.cut(0, 1);
        for byte in 0..8 {
            sent.extend([round, byte]);
            assert_eq!(net.write(near, &[round, byte]).unwrap(), 2);
            let now_ns = net.now_ns();
            net.advance(now_ns + 50_000);
        }
        net.heal(0, 1);
        sent.push(round);
        assert_eq!(net.write(near, &[round]).unwrap(), 1);
        let now_ns = net.now_ns();
        net.advance(now_ns + SECOND_NS);
        assert_eq!(read_all(&mut net, far, &mut received), Some(ErrorKind::WouldBlock));
        assert_eq!(received, sent);
    }
    net.cut(0, 1);
    net.write(near, b"last words").unwrap();
    let now_ns = net.now_ns();
    net.advance(now_ns + SECOND_NS);
    net.close(near);
    net.heal(0, 1);
    net.advance(now_ns + 2 * SECOND_NS);
    received.clear();
    assert_eq!(read_all(&mut net, far, &mut received), None);
    assert_eq!(received, b"last words");
}

#[test]
fn room_ns__is_when_the_writer_hears_of_room_and_a_cut_keeps_that_back() {
    let Pair { net, near, far, .. } = pair(0);
    let mut net = net.borrow_mut();
    assert_eq!(net.room_ns(near), Some(0));
    assert_eq!(net.write(near, &[1; 2_000]).unwrap(), 1_000);
    assert_eq!(net.write(near, &[1]).unwrap_err().kind(), ErrorKind::WouldBlock);
    net.advance(2 * SECOND_NS);
    assert_eq!(net.room_ns(near), Some(0), "it is full, and nobody has read");
    net.cut(0, 1);
    read_all(&mut net, far, &mut Vec::new());
    net.advance(9 * SECOND_NS);
    assert_eq!(net.room_ns(near), None);
    net.heal(0, 1);
    net.advance(10 * SECOND_NS);
    assert_eq!(net.room_ns(near), Some(9 * SECOND_NS + 500_000));
}

#[test]
fn forget_process__is_the_end_of_the_stream_or_a_reset() {
    for is_unread in [false, true] {
        let Pair { net, server, near, far } = pair(0);
        let mut net = net.borrow_mut();
        net.write(far, b"last words").unwrap();
        if is_unread {
            net.write(near, b"unread").unwrap();
        }
        net.advance(2 * SECOND_NS);
        net.forget_process(server, true);
        net.advance(3 * SECOND_NS);
        let mut received = Vec::new();
        let end = read_all(&mut net, near, &mut received);
        assert_eq!(end, is_unread.then_some(ErrorKind::ConnectionReset));
        assert_eq!(received, b"last words");
    }
}

#[test]
fn set_power__is_silence_until_the_host_is_back() {
    let Pair { net, near, .. } = pair(0);
    let mut net = net.borrow_mut();
    net.set_power(1, false);
    net.write(near, b"is anybody there").unwrap();
    net.advance(100 * SECOND_NS);
    assert_eq!(read_all(&mut net, near, &mut Vec::new()), Some(ErrorKind::WouldBlock));
    net.set_power(1, true);
    net.write(near, b"now").unwrap();
    net.advance(101 * SECOND_NS);
    assert_eq!(read_all(&mut net, near, &mut Vec::new()), Some(ErrorKind::ConnectionReset));
}

#[test]
fn accept__needs_a_descriptor_before_there_is_a_connection() {
    let Pair { net, server, .. } = pair(0);
    let mut net = net.borrow_mut();
    assert_eq!(net.accept(server, address()).unwrap_err().kind(), ErrorKind::WouldBlock);
    net.processes[server].descriptors_real = 1;
    let error = net.accept(server, address()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::MFILE.raw_os_error()));
}

#[test]
fn connect__to_nobody_is_refused_and_to_a_dead_host_hangs() {
    let Pair { net, .. } = pair(0);
    let mut net = net.borrow_mut();
    let nobody = net.connect(0, SocketAddr::new(Family::V4.address(1), 8)).unwrap();
    net.advance(2 * SECOND_NS);
    assert_eq!(net.take_error(nobody).unwrap().kind(), ErrorKind::ConnectionRefused);
    net.set_power(1, false);
    let dead = net.connect(0, address()).unwrap();
    net.advance(10 * SECOND_NS);
    assert!(net.take_error(dead).is_none() && net.peer_addr(dead).is_err());
    net.advance(100 * SECOND_NS);
    assert_eq!(net.take_error(dead).unwrap().kind(), ErrorKind::TimedOut);
}

#[test]
fn end_wait__shows_what_was_ready_then_and_reads_show_what_came_since() {
    let Pair { net, server, near, far } = pair(0);
    let mut net = net.borrow_mut();
    net.take_ready(server, 256);
    net.end_wait(server);
    net.write(near, b"late").unwrap();
    net.advance(2 * SECOND_NS);
    assert!(net.take_ready(server, 256).is_empty());
    let mut received = Vec::new();
    read_all(&mut net, far, &mut received);
    assert_eq!(received, b"late");
    assert!(net.has_ready(server));
}
