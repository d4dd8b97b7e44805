//! A hostile peer over shared memory, beside honest clients of the same server.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::common::{ECHO, Server, client, over, pattern};
use crate::nexus::harness::{HANG, RawPeer, hello, open_of};
use petrel::Endpoint;
use petrel::endpoint::SessionId;
use petrel_proto::control::{Hello, LinkAccept, Message, Offer, Ping, SessionAccept, SessionOpen};
use petrel_transport::shm::{
    Segment, Shm, ShmConfig, ShmLink, Side, connect, host_identity, send_with_fds,
};
use petrel_transport::wake::Waker;
use petrel_transport::{PeerId, Transport, TxFrame};

const RING_BYTES: u64 = 1 << 20;
/// The offset of the ring from its creator, the peer, to the server.
const RING_OFFSET: u64 = 4096;
/// The sleep word of the ring from the server to the peer.
const SLEEP_OFFSET: u64 = 512;
const HEADER_BYTES: u64 = 16;
const FIRST_REQUEST: u64 = 800;
const SLOTS: u16 = 8;
const PACKET_BYTES: u32 = 8_000;

/// A session with endpoint 0 of a server, by a peer that writes frames itself.
struct Hostile {
    control: RawPeer,
    shm: Shm,
    server: PeerId,
    memory: OwnedFd,
    session: SessionAccept,
    sent: u64,
    last_ping: Instant,
}

/// The time between heartbeats: on a busy machine a test takes longer than a peer may be silent.
const HEARTBEAT: Duration = Duration::from_millis(200);

impl Hostile {
    fn connect(address: SocketAddr) -> Self {
        let max_frame = PACKET_BYTES + 32;
        let mut control = RawPeer::connect(address);
        let host_identity = Some(host_identity().unwrap());
        let hello = Hello { host_identity, rendezvous: Some(vec![b'x']), ..hello() };
        let rendezvous = control.send_hello(hello).rendezvous.unwrap();
        control.send(open_of(4, Offer::Shm { max_frame }));
        let Some(Message::LinkAccept(LinkAccept { ticket: Some(ticket), .. })) = control.receive()
        else {
            panic!("no ticket");
        };
        let config = ShmConfig {
            ring_bytes: RING_BYTES as usize,
            max_frame_bytes: max_frame as usize,
            ..ShmConfig::default()
        };
        let segment = Segment::create(&config).unwrap();
        let memory = segment.as_fd().try_clone_to_owned().unwrap();
        let stream = connect(&rendezvous).unwrap();
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        send_with_fds(&stream, &ticket, &[segment.as_fd()]).unwrap();
        let mut granted = [0];
        std::io::Read::read_exact(&mut &*stream, &mut granted).unwrap();
        assert_eq!(granted, [1]);
        let mut shm = Shm::new(&config, Waker::new().unwrap());
        let server = shm.add_peer(ShmLink::new(segment, Side::Creator, stream)).unwrap();
        control.send(SessionOpen {
            link: 4,
            request: 1,
            session: 0,
            token: 7,
            first_request: FIRST_REQUEST,
            slots: SLOTS,
            credits: 8,
            max_message: 1 << 20,
            packet_bytes: PACKET_BYTES,
        });
        let Some(Message::SessionAccept(session)) = control.receive() else { panic!("no session") };
        Self { control, shm, server, memory, session, sent: 0, last_ping: Instant::now() }
    }

    /// Sends a request for `method` on the session's first slot.
    fn send(&mut self, method: u16, payload: &[u8]) {
        self.stay_alive();
        let number = FIRST_REQUEST + self.sent * u64::from(SLOTS);
        self.sent += 1;
        let SessionAccept { session, token, .. } = self.session;
        let words = [
            1 << 4 | u64::from(session) << 12 | u64::from(token) << 32,
            u64::from(method) | number << 16,
        ];
        let head: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        assert_eq!(
            self.shm.tx_burst(&[TxFrame { peer: self.server, head: &head, body: payload }]),
            0
        );
    }

    fn receive(&mut self) {
        let start = Instant::now();
        while self.shm.rx_burst(64, |_, _| {}) == 0 {
            assert!(start.elapsed() < HANG, "the server does not answer");
            self.stay_alive();
            std::thread::yield_now();
        }
    }

    fn stay_alive(&mut self) {
        if self.last_ping.elapsed() > HEARTBEAT {
            self.last_ping = Instant::now();
            self.control.send(Ping { nonce: self.sent });
        }
    }
}

/// Calls the server, and checks the answers.
fn call(client: &mut Endpoint, session: SessionId, rounds: u64) {
    for round in 0..rounds {
        let message = pattern(1 + round as usize % 3_000, round);
        let response = client.call(session, ECHO, &message).wait().unwrap();
        assert!(*response == *message, "the answer differs");
    }
}

/// The peer declares sleep after sleep, to be woken by each answer; it reads neither wake-ups nor answers, and finally
/// leaves.
#[test]
fn wake_up__of_a_peer_that_takes_none_does_not_block() {
    const ROUNDS: u64 = 400;
    let mut server = Server::start(over(true, true), "127.0.0.1:0", |_| ());
    let mut honest = [client(over(false, true)), client(over(true, false))];
    let sessions = honest.each_mut().map(|end| end.connect_wait(server.address).unwrap());
    let mut hostile = Hostile::connect(server.address);
    for round in 0..ROUNDS {
        let sleep: u64 = 2 * round + 1;
        rustix::io::pwrite(&hostile.memory, &sleep.to_le_bytes(), SLEEP_OFFSET).unwrap();
        hostile.send(ECHO, b"wake me");
        honest.iter_mut().zip(sessions).for_each(|(end, session)| call(end, session, 2));
    }
    drop(hostile);
    honest.iter_mut().zip(sessions).for_each(|(end, session)| call(end, session, 100));
    let (ended, wait) = mpsc::channel();
    std::thread::spawn(move || {
        server.end();
        ended.send(()).unwrap();
    });
    wait.recv_timeout(HANG).expect("the server does not end");
}

/// The peer changes a byte of the request while the server reads it.
fn flip_while_handlers_read(payload_bytes: u64) {
    const REQUESTS: u64 = 3_000;
    const LOOK: u16 = 9;
    let differing = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&differing);
    let server = Server::start(over(false, true), "127.0.0.1:0", move |endpoint| {
        endpoint.on(LOOK, move |_, cx, request| {
            let text = String::from_utf8_lossy(request.data()).into_owned();
            let is_text = std::str::from_utf8(std::hint::black_box(text.as_bytes())).is_ok();
            let first = request.data().to_vec();
            let is_same =
                (0..800_000 / first.len()).all(|_| std::hint::black_box(request.data()) == first);
            count.fetch_add(u64::from(!is_text || !is_same), Ordering::Relaxed);
            request.reply(cx, b"seen")
        });
    });
    let mut hostile = Hostile::connect(server.address);
    let memory = hostile.memory.try_clone().unwrap();
    let (at, done) = (Arc::new(AtomicU64::new(RING_OFFSET)), Arc::new(AtomicBool::new(false)));
    let flipper = {
        let (at, done) = (Arc::clone(&at), Arc::clone(&done));
        std::thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                for byte in [0xC3, b'a'] {
                    rustix::io::pwrite(&memory, &[byte], at.load(Ordering::Relaxed)).unwrap();
                }
            }
        })
    };
    let record_bytes = (8 + HEADER_BYTES + payload_bytes).next_multiple_of(64);
    assert_eq!(RING_BYTES % record_bytes, 0, "records skip nothing");
    let payload = vec![b'a'; payload_bytes as usize];
    for request in 0..REQUESTS {
        let record = RING_OFFSET + request * record_bytes % RING_BYTES;
        at.store(record + 8 + HEADER_BYTES + payload_bytes / 2, Ordering::Relaxed);
        hostile.send(LOOK, &payload);
        hostile.receive();
    }
    done.store(true, Ordering::Relaxed);
    flipper.join().unwrap();
    assert_eq!(differing.load(Ordering::Relaxed), 0, "of {REQUESTS} requests");
}

/// A handler registered for in-place reading sees the ring only through copies, which do not change.
#[test]
fn in_place__bytes_copied_out_are_consistent() {
    let server = Server::start(over(false, true), "127.0.0.1:0", |endpoint| {
        endpoint.on_in_place(9, |_, cx, request| {
            let copy = request.data().to_vec();
            let text = String::from_utf8_lossy(&copy).into_owned();
            assert!(std::str::from_utf8(std::hint::black_box(text.as_bytes())).is_ok());
            assert_eq!(request.data().read::<4>(0), Some(*b"text"));
            request.reply(cx, b"seen")
        });
    });
    let mut client = client(over(false, true));
    let session = client.connect_wait(server.address).unwrap();
    for bytes in [4, 40, 1_000, 4_000, 100_000] {
        let mut message = pattern(bytes, 3);
        message[..4].copy_from_slice(b"text");
        assert_eq!(*client.call(session, 9, &message).wait().unwrap(), *b"seen");
    }
}

/// Copied differently: a small request, one of some lines, and a large one.
#[test]
fn a_request_does_not_change_while_a_handler_reads_it() {
    [32, 1_000, 4_072].into_iter().for_each(flip_while_handlers_read);
}
