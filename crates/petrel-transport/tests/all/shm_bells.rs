//! Wake-ups between peers over shared memory, one of them malicious.
#![cfg(not(loom))]
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::Duration;

use petrel_transport::shm::{Segment, Shm, ShmConfig, ShmLink, Side, send_with_fds};
use petrel_transport::wake::Waker;
use petrel_transport::{PeerId, Transport, TxFrame};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Long enough for any machine; only a hang gets there.
const HANG: Duration = Duration::from_secs(60);

const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Offsets of the sleep word and of the head of the ring from the creator to the opener.
const SLEEP_OFFSET: u64 = 256;
const HEAD_OFFSET: u64 = 128;

/// Bytes of the record of a frame of one byte.
const RECORD_BYTES: u64 = 64;

/// An endpoint, and the far side of the only link: the memory, and an end of the connection.
struct Attacked {
    shm: Shm,
    peer: PeerId,
    memory: OwnedFd,
    bell: UnixStream,
}

impl Attacked {
    fn new() -> Self {
        let config = ShmConfig::default();
        let mut shm = Shm::new(&config, Waker::new().unwrap());
        let segment = Segment::create(&config).unwrap();
        let memory = segment.as_fd().try_clone_to_owned().unwrap();
        let (ours, bell) = UnixStream::pair().unwrap();
        let peer = shm.add_peer(ShmLink::new(segment, Side::Creator, ours)).unwrap();
        Self { shm, peer, memory, bell }
    }

    fn write_word(&self, offset: u64, word: u64) {
        rustix::io::pwrite(&self.memory, &word.to_le_bytes(), offset).unwrap();
    }

    fn send(&mut self) {
        assert_eq!(self.shm.tx_burst(&[TxFrame { peer: self.peer, head: b"x", body: b"" }]), 0);
    }

    fn has_bells(&self) -> bool {
        let bells = self.shm.bells().unwrap();
        poll(&mut [PollFd::new(&bells, PollFlags::IN)], Some(&AT_ONCE)) == Ok(1)
    }

    /// Sleeps once, while the peer sends this number of wake-ups.
    fn sleep_and_wake(&mut self, wake_ups: usize) {
        assert!(self.shm.prepare_wait());
        self.bell.write_all(&vec![7; wake_ups]).unwrap();
        let has_rung = self.has_bells();
        self.shm.finish_wait(has_rung);
    }

    /// Answers the bells of the last sleep, as before each sleep.
    fn answer_bells(&mut self) {
        assert!(self.shm.prepare_wait());
        self.shm.finish_wait(false);
    }
}

/// Runs `f`, which must end.
fn ends<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> R {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(f()));
    told.recv_timeout(HANG).expect("it is held up")
}

/// The peer declares sleep after sleep, receives no wake-up, and makes its end blocking.
#[test]
fn flush__is_not_held_up_by_a_peer_that_takes_no_wake_ups() {
    const SLEEPS: u64 = 3_000;
    let mut attacked = Attacked::new();
    attacked.bell.set_nonblocking(false).unwrap();
    let mut attacked = ends(move || {
        for sleep in 0..SLEEPS {
            attacked.write_word(HEAD_OFFSET, sleep * RECORD_BYTES);
            attacked.write_word(SLEEP_OFFSET, 2 * sleep + 1);
            attacked.send();
        }
        attacked
    });
    assert_eq!(attacked.shm.stats().tx_syscalls, SLEEPS);
    // After the peer's death too.
    let (gone, _) = UnixStream::pair().unwrap();
    drop(std::mem::replace(&mut attacked.bell, gone));
    let stats = ends(move || {
        attacked.write_word(SLEEP_OFFSET, 2 * SLEEPS + 1);
        attacked.send();
        attacked.shm.stats()
    });
    assert_eq!((stats.tx_syscalls, stats.tx_frames), (SLEEPS + 1, SLEEPS + 1));
}

#[test]
fn wait__one_wake_up_for_each_sleep_is_taken_and_one_more_ends_the_link() {
    let mut attacked = Attacked::new();
    for _ in 0..100 {
        attacked.sleep_and_wake(1);
    }
    attacked.answer_bells();
    assert_eq!(attacked.shm.stats().rx_broken_rings, 0);
    // The sleep in which the bells were answered had no wake-up.
    attacked.sleep_and_wake(3);
    attacked.answer_bells();
    assert_eq!(attacked.shm.stats().rx_broken_rings, 1);
    // The link's bell is closed, and does not end our sleep.
    assert_eq!(attacked.bell.read(&mut [0]).unwrap(), 0);
    assert!(!attacked.has_bells());
}

#[test]
fn wait__a_peer_that_hangs_up_keeps_nobody_awake() {
    let mut attacked = Attacked::new();
    let (gone, _) = UnixStream::pair().unwrap();
    drop(std::mem::replace(&mut attacked.bell, gone));
    assert!(attacked.has_bells(), "the end is told");
    attacked.sleep_and_wake(0);
    attacked.answer_bells();
    assert!(!attacked.has_bells());
    assert_eq!(attacked.shm.stats().rx_broken_rings, 0);
}

/// A TCP socket whose close waits for a minute: the peer does not receive the data.
fn lingering() -> (TcpStream, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    rustix::net::sockopt::set_socket_linger(&stream, Some(2 * HANG)).unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 1 << 16]).is_ok() {}
    stream.set_nonblocking(false).unwrap();
    (stream, listener)
}

/// A received descriptor has to be closed in the end, which may block.
#[test]
fn wait__is_not_held_up_by_descriptors_that_come_with_a_wake_up() {
    let mut attacked = Attacked::new();
    let (stream, _listener) = lingering();
    send_with_fds(&attacked.bell, b"x", &[stream.as_fd()]).unwrap();
    drop(stream);
    let stats = ends(move || {
        attacked.sleep_and_wake(0);
        attacked.answer_bells();
        attacked.shm.stats()
    });
    assert_eq!(stats.rx_broken_rings, 1);
}

/// Also if the connection lives on elsewhere, as while a closing thread holds it.
#[test]
fn remove_peer__leaves_nothing_that_keeps_awake() {
    for hangs_up in [false, true] {
        let mut attacked = Attacked::new();
        let (ours, mut bell) = UnixStream::pair().unwrap();
        let _elsewhere = ours.try_clone().unwrap();
        let segment = Segment::create(&ShmConfig::default()).unwrap();
        let peer = attacked.shm.add_peer(ShmLink::new(segment, Side::Creator, ours)).unwrap();
        bell.write_all(&[7]).unwrap();
        assert!(attacked.has_bells());
        if hangs_up {
            drop(bell);
        }
        attacked.shm.remove_peer(peer);
        assert!(!attacked.has_bells());
        // Other bells still end the sleep.
        attacked.bell.write_all(&[7]).unwrap();
        assert!(attacked.has_bells());
    }
}

#[test]
fn remove_peer__is_not_held_up_by_descriptors_that_were_not_taken() {
    let mut attacked = Attacked::new();
    let (stream, _listener) = lingering();
    send_with_fds(&attacked.bell, b"x", &[stream.as_fd()]).unwrap();
    drop(stream);
    ends(move || attacked.shm.remove_peer(attacked.peer));
}
