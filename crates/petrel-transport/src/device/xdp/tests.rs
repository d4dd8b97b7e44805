//! Frames between the two ends of a veth pair, in a network namespace of the test's own.

use std::time::{Duration, Instant};

use petrel_skip::{Need, skip};

use super::*;

const PORT: u16 = 7000;

/// Runs a test on a thread in a namespace with the veth pair `a` and `b` of two queues each.
fn with_pair(inside: impl FnOnce() + Send + 'static) {
    let thread = thread::spawn(|| {
        let made = petrel_netns::leave().and_then(|()| {
            let queues = "numrxqueues 2 numtxqueues 2";
            petrel_netns::ip(&format!("link add a {queues} type veth peer name b {queues}"))?;
            petrel_netns::ip("link set a up")?;
            petrel_netns::ip("link set b up")
        });
        match made {
            Ok(()) => inside(),
            Err(why) => skip(Need::Namespaces, why),
        }
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn config(mode: Mode) -> XdpConfig {
    XdpConfig { mode, chunks: 256, ..XdpConfig::default() }
}

/// Waits for the kernel's bottom half, which may run on another processor.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(10), "never: {what}");
        thread::yield_now();
    }
}

/// A datagram to a port, with a number in its payload.
fn datagram(port: u16, number: u64, payload: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0, 0x45, 0];
    frame.extend(((28 + payload) as u16).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend(999_u16.to_be_bytes());
    frame.extend(port.to_be_bytes());
    frame.extend(((8 + payload) as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(number.to_be_bytes());
    frame.resize(42 + payload, number as u8);
    frame
}

fn send(device: &mut Xdp, frame: &[u8]) -> bool {
    let Some(memory) = device.begin() else { return false };
    memory[..frame.len()].copy_from_slice(frame);
    device.commit(frame.len());
    true
}

/// Sends `count` numbered frames from one end to the other, in bursts, and checks that each arrives once and whole.
fn stream(from: &mut Xdp, to: &mut Xdp, count: u64) {
    let (mut sent, mut got) = (0, 0);
    while got < count {
        // The receiver has 128 chunks on two queues.
        while sent < count
            && sent - got < 32
            && send(from, &datagram(PORT, sent, 8 + sent as usize % 1400))
        {
            sent += 1;
        }
        from.flush();
        eventually("a frame", || match to.received() {
            Some(frame) => {
                assert_eq!(frame, datagram(PORT, got, 8 + got as usize % 1400));
                got += 1;
                to.release();
                true
            }
            None => false,
        });
    }
    assert!(to.received().is_none());
}

fn both_ways(mode: Mode) {
    with_pair(move || {
        let mut a = Xdp::open(&config(mode), "a", PORT).unwrap();
        let mut b = Xdp::open(&config(mode), "b", PORT).unwrap();
        assert_eq!((a.frame_bytes_max(), a.receive_frames()), (1514, 128));
        // Every ring wraps round some 20 times.
        stream(&mut a, &mut b, 5_000);
        stream(&mut b, &mut a, 5_000);
        assert_eq!(a.dropped(), Dropped::default());
        assert_eq!(b.dropped(), Dropped::default());
        assert_eq!((a.state(), b.state()), (State::Up, State::Up));
    });
}

#[test]
fn frames__go_both_ways_in_generic_mode() {
    both_ways(Mode::Generic);
}

#[test]
fn frames__go_both_ways_in_native_mode() {
    both_ways(Mode::Native);
}
