//! A wait ends for every reason to end, and no wake-up is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::frames::{check_arrival, frame};
use super::{Harness, collect, send_all};
use crate::transport::Transport;

/// A longer wait with a reason to end counts as hanging.
const HANGING: Duration = Duration::from_secs(30);

/// Repetitions of a race between sleeping and waking.
const RACES: u32 = 200;

fn wait_or_hang<T: Transport>(transport: &mut T) {
    let start = Instant::now();
    transport.wait(Some(HANGING.as_nanos() as u64));
    assert!(start.elapsed() < HANGING, "a wait did not end though it had a reason to");
}

/// A wait with a timeout of 0, or a short timeout, returns with or without a frame.
///
/// # Panics
/// When the transport breaks the promise, as do all checks.
pub fn wait_of_no_time_returns<H: Harness>(harness: &mut H) {
    let [mut a, mut b] = harness.pair();
    a.transport.wait(Some(0));
    a.transport.wait(Some(1));
    a.transport.wait(Some(1_000_000));
    send_all(harness, &mut a, &[frame(13, 0, 20)]);
    b.transport.wait(Some(0));
    collect(harness, &mut b, 1);
    b.transport.wait(Some(0));
}

/// A waiting frame ends the wait, even if the frame arrived earlier or the last `rx_burst` left it
/// behind.
pub fn wait_ends_when_a_frame_has_arrived<H: Harness>(harness: &mut H) {
    if !harness.medium().is_lossless {
        return;
    }
    let [mut a, mut b] = harness.pair();
    for round in 0..20 {
        let largest = a.transport.max_frame_bytes(a.peer);
        let sent = [frame(13, 2 * round, largest), frame(13, 2 * round + 1, largest)];
        send_all(harness, &mut a, &sent);
        let mut arrived = Vec::new();
        while arrived.len() < sent.len() {
            wait_or_hang(&mut b.transport);
            b.transport.rx_burst(1, |_, frame| arrived.push(frame.to_vec()));
        }
        check_arrival(&sent, &arrived, harness.medium());
    }
}

/// Another thread's waker ends the wait, whether it comes before or after the start of the wait.
pub fn wait_ends_when_woken<H: Harness>(harness: &mut H) {
    let [mut a, _b] = harness.pair();
    for _ in 0..RACES {
        let woken = Arc::new(AtomicBool::new(false));
        let (flag, waker) = (woken.clone(), a.transport.waker());
        let thread = std::thread::spawn(move || {
            flag.store(true, Ordering::SeqCst);
            waker.wake();
        });
        while !woken.load(Ordering::SeqCst) {
            wait_or_hang(&mut a.transport);
        }
        thread.join().expect("waking does not panic");
    }
}

/// A frame ends the wait even if another thread sends it while this thread falls asleep.
pub fn wait_ends_when_a_frame_arrives_meanwhile<H>(harness: &mut H)
where
    H: Harness<T: Send + 'static>,
{
    let medium = harness.medium();
    if !(medium.is_lossless && medium.can_wait) {
        return;
    }
    let [mut a, mut b] = harness.pair();
    let count = RACES;
    let all_arrived = Arc::new(AtomicBool::new(false));
    let is_done = all_arrived.clone();
    let sender = std::thread::spawn(move || {
        for sequence in 0..count {
            let mut bytes_left = true;
            while bytes_left {
                bytes_left = super::send_once(&mut a, &[&frame(14, sequence, 50)]) != 0;
            }
            // Pauses of varying length hit every moment of the receiver's falling asleep.
            std::thread::sleep(Duration::from_micros(u64::from(sequence % 50)));
        }
        // A medium may have kept the last frames, while a busy machine did not run the receiver.
        while !is_done.load(Ordering::SeqCst) {
            a.transport.flush();
            std::thread::sleep(Duration::from_micros(50));
        }
        a
    });
    let mut arrived = Vec::new();
    while arrived.len() < count as usize {
        wait_or_hang(&mut b.transport);
        b.transport.rx_burst(64, |_, frame| arrived.push(frame.to_vec()));
    }
    all_arrived.store(true, Ordering::SeqCst);
    let sent: Vec<_> = (0..count).map(|sequence| frame(14, sequence, 50)).collect();
    check_arrival(&sent, &arrived, harness.medium());
    drop(sender.join().expect("sending does not panic"));
}
