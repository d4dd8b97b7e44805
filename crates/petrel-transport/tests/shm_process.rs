//! The shared-memory transport between two processes: traffic, and the death of either side.
//!
//! A test runs the test binary once more, as the peer. The environment gives the test function its
//! role.
#![cfg(not(loom))]
#![allow(non_snake_case)]

use std::io::Read;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use petrel_transport::shm::{
    NAME_BYTES, PeerStream, Rendezvous, Segment, Shm, ShmConfig, ShmLink, Side, connect,
    host_identity, recv_with_fds, send_with_fds,
};
use petrel_transport::wake::Waker;
use petrel_transport::{PeerId, RX_BURST_MAX, Transport, TxFrame};
use rustix::process::{Pid, Signal, kill_process};

/// Names the rendezvous to a child process.
const MEET_AT: &str = "PETREL_TEST_MEET_AT";
/// Makes a child process create the segment.
const CREATE: &str = "PETREL_TEST_CREATE";

/// Long enough for any machine; only a hang gets there.
const HANG: Duration = Duration::from_secs(120);

/// A frame with which the parent asks its child to exit.
const STOP: &[u8] = b"stop";

fn config() -> ShmConfig {
    ShmConfig { ring_bytes: 64 << 10, max_frame_bytes: 4096, ..ShmConfig::default() }
}

/// A frame whose every byte depends on its number.
fn frame(number: u64) -> Vec<u8> {
    let length = 8 + (number * 7919 % 4000) as usize;
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend((8..length as u64).map(|i| (number ^ i) as u8));
    bytes
}

// Replaces a control plane: both sides send their identity, and the creator its segment. The
// connection then becomes the link's bell. A second connection stays with the test, to detect the
// peer's end. The message may carry a name.

fn offer(stream: &UnixStream, segment: Option<&Segment>, name: &[u8]) {
    let message = [&host_identity().unwrap()[..], name].concat();
    let fds: Vec<_> = segment.map(AsFd::as_fd).into_iter().collect();
    assert_eq!(send_with_fds(stream, &message, &fds).unwrap(), message.len());
}

/// The name from the peer, and the segment from a creator.
fn accept_offer(stream: &UnixStream, name_bytes: usize) -> (Vec<u8>, Option<OwnedFd>) {
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    let identity = host_identity().unwrap();
    // Not one byte more: wake-ups may follow.
    let mut message = vec![0; identity.len() + name_bytes];
    let (count, mut fds) = recv_with_fds(stream, &mut message, 1).unwrap();
    assert_eq!((count, &message[..identity.len()]), (message.len(), &identity[..]));
    (message.split_off(identity.len()), fds.pop())
}

/// Links `shm` over `stream` as the given side. Returns the peer, and the name of `peer_name_bytes`
/// bytes it sent.
fn link(
    shm: &mut Shm,
    stream: PeerStream,
    side: Side,
    (name, peer_name_bytes): (&[u8], usize),
) -> (PeerId, Vec<u8>) {
    let created = (side == Side::Creator).then(|| Segment::create(&config()).unwrap());
    offer(&stream, created.as_ref(), name);
    let (peer_name, file) = accept_offer(&stream, peer_name_bytes);
    let segment = created.unwrap_or_else(|| Segment::from_fd(file.unwrap()).unwrap());
    (shm.add_peer(ShmLink::new(segment, side, stream)).unwrap(), peer_name)
}

// The child.

/// In a child process: echoes frames until the parent stops it or is gone. Returns true in a child.
fn was_child() -> bool {
    let Ok(name) = std::env::var(MEET_AT) else { return false };
    let side = if std::env::var(CREATE).is_ok() { Side::Creator } else { Side::Opener };
    let mut shm = Shm::new(&config(), Waker::new().unwrap());
    let (bell, stream) = (connect(name.as_bytes()).unwrap(), connect(name.as_bytes()).unwrap());
    let own = Rendezvous::bind().unwrap();
    let (parent, _) = link(&mut shm, bell, side, (&own.name(), 0));
    while echo_burst(&mut shm, parent) && !is_closed(&stream) {
        shm.wait(Some(Duration::from_millis(100).as_nanos() as u64));
    }
    true
}

fn is_closed(mut stream: &UnixStream) -> bool {
    matches!(stream.read(&mut [0]), Ok(0))
}

/// Sends received frames back. Returns false after [`STOP`].
fn echo_burst(shm: &mut Shm, parent: PeerId) -> bool {
    let mut frames = Vec::new();
    while shm.rx_burst(16, |_, frame| frames.push(frame.to_vec())) > 0 {
        for frame in frames.drain(..) {
            if frame == STOP {
                return false;
            }
            while shm.tx_burst(&[TxFrame { peer: parent, head: &frame, body: &[] }]) != 0 {
                std::thread::yield_now();
            }
        }
    }
    true
}

// The parent.

/// A child process, killed with its value.
struct Peer {
    process: Child,
    stream: PeerStream,
    id: PeerId,
    /// The rendezvous name of the child.
    name: Vec<u8>,
}

impl Peer {
    /// Starts a child that runs the test `test`, and links `shm` with the child.
    fn start(shm: &mut Shm, test: &str, side: Side) -> Self {
        let mut rendezvous = Rendezvous::bind().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).stdout(Stdio::null());
        command.env(MEET_AT, str::from_utf8(&rendezvous.name()).unwrap());
        if side == Side::Opener {
            command.env(CREATE, "1");
        }
        let mut process = command.spawn().unwrap();
        let bell = accept(&mut rendezvous, &mut process);
        let stream = accept(&mut rendezvous, &mut process);
        let (id, name) = link(shm, bell, side, (b"", NAME_BYTES));
        assert_eq!(name.len(), NAME_BYTES);
        Self { process, stream, id, name }
    }

    /// Stops the process at any point, as a debugger or a hypervisor does, or continues it.
    fn signal(&self, signal: Signal) {
        let process = Pid::from_raw(self.process.id() as i32).unwrap();
        kill_process(process, signal).unwrap();
    }

    /// The stream that shows the peer's end, read in blocking mode.
    fn stream_at_end(&self) -> &PeerStream {
        self.stream.set_nonblocking(false).unwrap();
        &self.stream
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        let status = self.process.wait().unwrap();
        assert!(!status.success());
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn accept(rendezvous: &mut Rendezvous, process: &mut Child) -> PeerStream {
    let start = Instant::now();
    loop {
        if let Some(stream) = rendezvous.accept().unwrap() {
            return stream;
        }
        assert!(process.try_wait().unwrap().is_none(), "the child ended before it connected");
        assert!(start.elapsed() < HANG, "the child did not connect");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends numbered frames and checks that `count` echoes arrive in order and unchanged.
fn exchange(shm: &mut Shm, peer: PeerId, count: u64) {
    let (mut sent, mut echoed) = (0, 0);
    let start = Instant::now();
    while echoed < count {
        let sent_before = sent;
        while sent < count && sent - echoed < 64 && try_send(shm, peer, &frame(sent)) {
            sent += 1;
        }
        let received = shm.rx_burst(RX_BURST_MAX, |from, bytes| {
            assert_eq!((from, bytes), (peer, &frame(echoed)[..]));
            echoed += 1;
        });
        if received == 0 && sent == sent_before {
            shm.wait(Some(Duration::from_millis(100).as_nanos() as u64));
            assert!(start.elapsed() < HANG, "{echoed} of {sent} echoes came");
        }
    }
}

fn try_send(shm: &mut Shm, peer: PeerId, bytes: &[u8]) -> bool {
    let (head, body) = bytes.split_at(bytes.len().min(16));
    shm.tx_burst(&[TxFrame { peer, head, body }]) == 0
}

/// Counts the segments mapped by this process, and those with open descriptors.
fn segments_held() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let files = links.filter_map(|link| std::fs::read_link(link.path()).ok());
    (
        maps.lines().filter(|line| line.contains("petrel-shm")).count(),
        files.filter(|file| file.to_string_lossy().contains("petrel-shm")).count(),
    )
}

/// Named objects that could be left behind: files in shared memory with a segment's name, and
/// sockets named `socket`.
fn names_left(socket: &str) -> Vec<String> {
    let files = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let files = files.map(|entry| entry.path().display().to_string());
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    let sockets = sockets.lines().filter(|line| line.contains(socket)).map(str::to_owned);
    files.filter(|name| name.contains("petrel-shm")).chain(sockets).collect()
}

/// Tests that count segments run one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn two_processes__exchange_frames_with_either_as_creator() {
    if was_child() {
        return;
    }
    let _alone = alone();
    for side in [Side::Creator, Side::Opener] {
        let mut shm = Shm::new(&config(), Waker::new().unwrap());
        let test = "two_processes__exchange_frames_with_either_as_creator";
        let mut peer = Peer::start(&mut shm, test, side);
        exchange(&mut shm, peer.id, 5000);
        assert!(try_send(&mut shm, peer.id, STOP));
        assert!(peer.process.wait().unwrap().success());
    }
}

#[test]
fn kill__the_survivor_goes_on_and_nothing_is_left() {
    if was_child() {
        return;
    }
    let _alone = alone();
    let mut shm = Shm::new(&config(), Waker::new().unwrap());
    let test = "kill__the_survivor_goes_on_and_nothing_is_left";
    for side in [Side::Creator, Side::Opener] {
        let mut peer = Peer::start(&mut shm, test, side);
        exchange(&mut shm, peer.id, 500);
        kill_during_traffic(&mut shm, &mut peer);
        let refused = connect(&peer.name).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        assert_eq!(names_left(str::from_utf8(&peer.name).unwrap()), [""; 0]);
        assert_eq!(segments_held(), (1, 0), "the survivor keeps the mapping alone");
        shm.remove_peer(peer.id);
        assert_eq!(segments_held(), (0, 0));
        // A restarted peer is a new peer.
        let restarted = Peer::start(&mut shm, test, side);
        exchange(&mut shm, restarted.id, 500);
        shm.remove_peer(restarted.id);
    }
    assert_eq!(shm.stats().rx_broken_rings, 0);
}

/// Kills the peer while the two rings are in use, and continues to use them.
fn kill_during_traffic(shm: &mut Shm, peer: &mut Peer) {
    for number in 0..200 {
        try_send(shm, peer.id, &frame(number));
    }
    peer.kill();
    let mut blocked = 0;
    let mut last = None;
    for number in 0..200 {
        blocked += u32::from(!try_send(shm, peer.id, &frame(number)));
        shm.rx_burst(RX_BURST_MAX, |_, bytes| {
            let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            assert_eq!(bytes, frame(number), "a torn frame");
            assert!(last < Some(number), "out of order");
            last = Some(number);
        });
    }
    assert!(blocked > 0, "nobody empties the ring");
    shm.wait(Some(0));
    let mut stream = &**peer.stream_at_end();
    assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "the control plane sees the end");
}

#[test]
fn kill__of_the_side_that_sleeps_and_of_the_side_that_wakes() {
    if was_child() {
        return;
    }
    let _alone = alone();
    let mut shm = Shm::new(&config(), Waker::new().unwrap());
    let test = "kill__of_the_side_that_sleeps_and_of_the_side_that_wakes";
    let mut peer = Peer::start(&mut shm, test, Side::Creator);
    exchange(&mut shm, peer.id, 1);
    // The child sleeps most of the time now, and the declaration outlives the child.
    peer.kill();
    for number in 0..10 {
        try_send(&mut shm, peer.id, &frame(number));
    }
    // No peer can wake us: the wait ends by its timeout.
    shm.wait(Some(1_000_000));
    assert_eq!(shm.rx_burst(RX_BURST_MAX, |_, _| {}), 0);
}

#[test]
fn stop__a_full_ring_holds_what_was_sent_while_its_sender_uses_the_memory_again() {
    if was_child() {
        return;
    }
    let _alone = alone();
    let mut shm = Shm::new(&config(), Waker::new().unwrap());
    let test = "stop__a_full_ring_holds_what_was_sent_while_its_sender_uses_the_memory_again";
    let peer = Peer::start(&mut shm, test, Side::Creator);
    exchange(&mut shm, peer.id, 100);
    // Each round fills the ring with frames the sender's single buffer no longer holds.
    let (mut sent, mut buffer) = (0, Vec::new());
    for _ in 0..20 {
        peer.signal(Signal::STOP);
        let first = sent;
        loop {
            buffer.clone_from(&frame(sent));
            let is_taken = try_send(&mut shm, peer.id, &buffer);
            buffer.fill(0xDB);
            if !is_taken {
                break;
            }
            sent += 1;
        }
        assert!(sent - first > 5, "a ring that holds {} frames", sent - first);
        peer.signal(Signal::CONT);
        receive_echoes(&mut shm, peer.id, first..sent);
    }
}

/// Waits for these echoes, in order and unchanged.
fn receive_echoes(shm: &mut Shm, peer: PeerId, mut numbers: Range<u64>) {
    let start = Instant::now();
    while !numbers.is_empty() {
        let received = shm.rx_burst(RX_BURST_MAX, |from, bytes| {
            let number = numbers.next().expect("an echo of something that was sent");
            assert!((from, bytes) == (peer, &frame(number)[..]), "frame {number} differs");
        });
        if received == 0 {
            shm.wait(Some(Duration::from_millis(100).as_nanos() as u64));
            assert!(start.elapsed() < HANG, "echo {} did not come", numbers.start);
        }
    }
}
