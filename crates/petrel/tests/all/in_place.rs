//! With large frames over shared memory a large message is one packet: copied once, by its sender, and read by the
//! handler in the ring.

use std::cell::RefCell;
use std::rc::Rc;

use petrel::endpoint::AllowedTransports;
use petrel::endpoint::{EndpointConfig, IdlePolicy, SessionId};
use petrel::{Endpoint, Nexus};

const METHOD: u16 = 3;
const LARGE: usize = 8 << 20;
const CALLS: usize = 6;

fn message(round: usize) -> Vec<u8> {
    (0..LARGE).map(|at| (at / 4_096 * 31 + at + round) as u8).collect()
}

fn config() -> EndpointConfig {
    let mut config = EndpointConfig::default();
    config.transports = AllowedTransports::SHM;
    config.idle = IdlePolicy::Poll;
    config.host.shm.ring_bytes = 32 << 20;
    config.host.shm.max_frame_bytes = LARGE + 64;
    config
}

/// Makes a call with a large request and checks the echo; `turn` runs the other end.
fn call(client: &mut Endpoint, session: SessionId, round: usize, mut turn: impl FnMut()) {
    let sent = message(round);
    let request = client.alloc_message(&sent).unwrap();
    let response = client.alloc(LARGE).unwrap();
    let ended = Rc::new(RefCell::new(false));
    let end = Rc::clone(&ended);
    client
        .call(session, METHOD, request)
        .into_buffer(response)
        .then(move |_, _, reply| {
            assert!(reply.message().expect("the call succeeds") == sent, "the answer differs");
            *end.borrow_mut() = true;
        })
        .unwrap();
    while !*ended.borrow() {
        client.run_once();
        turn();
    }
}

/// With a method whose memory is prefetched, frames take another path.
#[test]
fn a_large_message_is_one_packet_each_way() {
    [false, true].into_iter().for_each(large_messages_are_one_packet);
}

fn large_messages_are_one_packet(looks_ahead: bool) {
    let nexus = Nexus::builder().listen(([127, 0, 0, 1], 0).into()).start().unwrap();
    let mut server = nexus.endpoint(config()).unwrap();
    if looks_ahead {
        server.prefetch(2, |_| std::ptr::null());
    }
    server.on_in_place(0, |_, cx, request| request.reply(cx, b"another"));
    server.on_in_place(METHOD, |_, cx, request| {
        assert_eq!((request.data().len(), request.method()), (LARGE, METHOD));
        request.reply_with(cx, LARGE, |data, out| {
            data.copy_to_slice(out);
            LARGE
        })
    });
    let mut client = nexus.endpoint(config()).unwrap();
    let session = client.connect(nexus.local_addr().expect("it listens")).unwrap();
    crate::common::open(&mut client, &mut server, session);
    for round in 0..CALLS {
        call(&mut client, session, round, || {
            server.run_once();
        });
    }
    let (client, server) = (client.stats(), server.stats());
    assert_eq!((client.protocol.packets_sent, server.protocol.packets_sent), (6, 6));
    assert_eq!((client.transport.rx_frames, server.transport.rx_frames), (6, 6));
}
