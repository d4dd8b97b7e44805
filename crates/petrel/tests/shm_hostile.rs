//! A peer over shared memory that means harm, beside honest clients of the same server.

mod common;
// The raw peers of the nexus' tests.
#[allow(dead_code)]
#[path = "nexus/harness.rs"]
mod harness;

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc;

use common::{ECHO, Server, client, over, pattern};
use harness::{HANG, RawPeer, hello};
use petrel::{Endpoint, SessionId};
use petrel_proto::control::{
    Hello, LinkAccept, LinkOpen, Message, Offer, SessionAccept, SessionOpen,
};
use petrel_transport::shm::{
    Segment, Shm, ShmConfig, ShmLink, Side, connect, host_identity, send_with_fds,
};
use petrel_transport::wake::Waker;
use petrel_transport::{PeerId, Transport, TxFrame};

const RING_BYTES: u64 = 1 << 20;
/// The sleep word of the ring from the server to the peer.
const SLEEP_OFFSET: u64 = 512;
const FIRST_REQUEST: u64 = 800;
const SLOTS: u16 = 8;
const PACKET_BYTES: u32 = 8_000;

/// A session with endpoint 0 of a server, by a peer that writes its frames itself.
struct Hostile {
    _control: RawPeer,
    shm: Shm,
    server: PeerId,
    memory: OwnedFd,
    session: SessionAccept,
    sent: u64,
}

impl Hostile {
    fn connect(address: SocketAddr) -> Self {
        let max_frame = PACKET_BYTES + 32;
        let mut control = RawPeer::connect(address);
        let host_identity = Some(host_identity().unwrap());
        let greeting = Hello { host_identity, rendezvous: Some(vec![b'x']), ..hello() };
        let rendezvous = control.greet(greeting).rendezvous.unwrap();
        let offers = vec![Offer::Shm { max_frame }];
        control.send(LinkOpen { link: 4, from_endpoint: 0, to_endpoint: 0, offers, ecn: false });
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
        Self { _control: control, shm, server, memory, session, sent: 0 }
    }

    /// Sends a request for `method` on the session's first slot.
    fn send(&mut self, method: u16, payload: &[u8]) {
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
}

/// Calls the server, and checks the answers.
fn call(client: &mut Endpoint, session: SessionId, rounds: u64) {
    for round in 0..rounds {
        let message = pattern(1 + round as usize % 3_000, round);
        let response = client.call_wait(session, ECHO, &message, message.len()).unwrap();
        assert!(*response == *message, "the answer differs");
    }
}

/// The peer declares sleep after sleep, so that each answer wakes it, takes no wake-up and no answer, and
/// is gone in the end.
#[test]
fn a_peer_that_takes_no_wake_ups_holds_nobody_up() {
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
