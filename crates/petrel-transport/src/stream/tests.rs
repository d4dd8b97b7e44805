use std::io::Write;
use std::net::{TcpListener, TcpStream};

use super::*;
use crate::TxFrame;
use crate::conformance::{self, End, Harness, Medium, Star};

/// Both ends of a connection.
fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

fn link(socket: TcpStream) -> StreamLink {
    StreamLink::new(socket, STREAM_FRAME_BYTES, Vec::new()).unwrap()
}

fn stream() -> Stream {
    Stream::new(Waker::new().unwrap())
}

struct Connected {
    /// Connections of the hub to others.
    others: usize,
}

impl Harness for Connected {
    type T = Stream;

    fn medium(&self) -> Medium {
        Medium::lossless().with_capacity(70_000)
    }

    fn star(&mut self) -> Star<Stream> {
        let mut hub = stream();
        for _ in 0..self.others {
            let (near, far) = connection();
            hub.add_peer(link(near)).unwrap();
            // The other end stays open, and silent.
            std::mem::forget(far);
        }
        let mut peers = Vec::new();
        let leaves = [(); 2].map(|()| {
            let (near, far) = connection();
            peers.push(hub.add_peer(link(near)).unwrap());
            let mut transport = stream();
            let peer = transport.add_peer(link(far)).unwrap();
            End { transport, peer }
        });
        Star { hub, peers: [peers[0], peers[1]], leaves }
    }
}

#[test]
fn conformance() {
    for others in [0, 3] {
        conformance::run_all(&mut Connected { others });
        conformance::run_threaded(&mut Connected { others });
    }
}

/// Returns the delivered frames until the transport reports a broken peer, and the report.
fn until_broken(transport: &mut Stream) -> (Vec<Vec<u8>>, String) {
    let mut frames = Vec::new();
    loop {
        transport.rx_burst(1, |_, frame| frames.push(frame.to_vec()));
        if let Some((peer, why)) = transport.take_broken() {
            assert!(transport.take_broken().is_none(), "each peer is reported once");
            assert_eq!(transport.max_frame_bytes(peer), STREAM_FRAME_BYTES, "it is still there");
            return (frames, why);
        }
    }
}

#[test]
fn take_broken__after_impossible_lengths_and_the_end_of_the_connection() {
    let long = (STREAM_FRAME_BYTES as u32 + 1).to_le_bytes();
    for (end, expected) in
        [(&[0; 4][..], "broke the framing"), (&long, "broke the framing"), (&[7, 0], "has closed")]
    {
        let (mut raw, near) = connection();
        let mut transport = stream();
        let peer = transport.add_peer(link(near)).unwrap();
        raw.write_all(&[[2, 0, 0, 0, 8, 9], [2, 0, 0, 0, 6, 5]].concat()).unwrap();
        raw.write_all(end).unwrap();
        drop(raw);
        let (frames, why) = until_broken(&mut transport);
        assert_eq!(frames, [[8, 9], [6, 5]]);
        assert!(why.contains(expected), "{why}");
        let frame = TxFrame { peer, head: &[1], body: &[] };
        assert_eq!(transport.tx_burst(&[frame]), 0);
        assert_eq!(transport.stats().tx_dropped_error, 1);
        transport.remove_peer(peer);
        assert_eq!(transport.max_frame_bytes(peer), 0);
        assert!(!transport.has_peers());
    }
}

#[test]
fn push__to_a_peer_that_does_not_read_is_refused_and_goes_on_later() {
    let (near, far) = connection();
    let (mut a, mut b) = (stream(), stream());
    let to_b = a.add_peer(link(near)).unwrap();
    b.add_peer(link(far)).unwrap();
    let frame = |number: u64| number.to_le_bytes();
    let large = [7; 4_096];
    let send = |a: &mut Stream, number: u64| {
        a.tx_burst(&[TxFrame { peer: to_b, head: &frame(number), body: &large }]) == 0
    };
    let mut sent = 0;
    while send(&mut a, sent) {
        sent += 1;
    }
    assert!(sent as usize * large.len() > OUT_BYTES_MAX);
    assert!(
        !a.prepare_wait() || !send(&mut a, sent),
        "it sleeps only while the peer does not read"
    );
    let mut received = 0;
    while received < sent {
        b.rx_burst(24, |_, bytes| {
            assert_eq!((&bytes[..8], bytes.len()), (&frame(received)[..], 8 + large.len()));
            received += 1;
        });
        a.rx_burst(24, |_, _| panic!("nothing was sent"));
    }
    assert!(send(&mut a, sent));
    assert!(a.stats().tx_blocked > 0);
}

/// The agreement may have been read together with the first frames.
#[test]
fn add_peer__with_frames_received_before() {
    let (near, mut raw) = connection();
    let received = [&[1, 0, 0, 0, 5][..], &[3, 0, 0, 0, 6]].concat();
    let mut transport = stream();
    transport.add_peer(StreamLink::new(near, 1_400, received).unwrap()).unwrap();
    assert!(!transport.prepare_wait());
    raw.write_all(&[7, 8]).unwrap();
    let mut frames = Vec::new();
    while frames.len() < 2 {
        transport.rx_burst(24, |_, frame| frames.push(frame.to_vec()));
    }
    assert_eq!(frames, [vec![5], vec![6, 7, 8]]);
    let (near, _raw) = connection();
    let small = StreamLink::new(near, MIN_FRAME_BYTES - 1, Vec::new()).unwrap();
    assert!(matches!(transport.add_peer(small), Err(LinkError::Unsupported(_))));
}

/// Peers that do not read share their memory, and a peer that reads still gets its frames.
#[test]
fn push__to_many_peers_that_do_not_read_keeps_little_for_all() {
    let mut hub = stream();
    let mut silent = Vec::new();
    let frame = vec![7; STREAM_FRAME_BYTES];
    let mut refused = 0;
    for _ in 0..400 {
        let (near, far) = connection();
        // Some hosts have buffers of many megabytes for each connection.
        socket2::SockRef::from(&near).set_send_buffer_size(64 << 10).unwrap();
        socket2::SockRef::from(&far).set_recv_buffer_size(64 << 10).unwrap();
        let peer = hub.add_peer(link(near)).unwrap();
        silent.push(far);
        let to_peer = TxFrame { peer, head: &frame, body: &[] };
        // More than the kernel's buffers hold.
        refused += (0..8).map(|_| hub.tx_burst(&[to_peer; 64]).count_ones()).sum::<u32>();
        assert!(hub.kept_bytes <= OUT_BYTES_OF_ALL_MAX + hub.count * (STREAM_FRAME_BYTES + 4));
    }
    assert!(refused > 0 && hub.kept_bytes > OUT_BYTES_OF_ALL_MAX / 2, "{}", hub.kept_bytes);
    let (near, far) = connection();
    let mut reader = stream();
    reader.add_peer(link(far)).unwrap();
    let peer = hub.add_peer(link(near)).unwrap();
    let mut received = 0;
    while received < 50 {
        hub.tx_burst(&[TxFrame { peer, head: &frame, body: &[] }]);
        reader.rx_burst(24, |_, _| received += 1);
    }
    for peer in 0..=hub.count as u32 {
        hub.remove_peer(PeerId(peer));
    }
    assert_eq!((hub.count, hub.kept_bytes), (0, 0));
}
