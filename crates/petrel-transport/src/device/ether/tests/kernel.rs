//! Frames between templates and the parser on one side, and the kernel's sockets on the other.

use std::mem::MaybeUninit;
use std::net::SocketAddr;

use petrel_netns::Host;
use rustix::net::{SendFlags, sendto};
use socket2::{MaybeUninitSlice, MsgHdrMut, Socket};

use super::network::{FAR, FAR_MAC, NEAR, NEAR_MAC, Raw, between_hosts, far_socket};
use crate::device::ether::frame::{Checksum, Parsed, Template, parse};

const PORT: u16 = 7_000;

/// Returns the next datagram to the port, and its bytes.
fn next_datagram(raw: &mut Raw) -> (Parsed, Vec<u8>) {
    loop {
        let frame = raw.receive();
        if let Ok(parsed) = parse(&frame)
            && parsed.to_port == PORT
        {
            let payload = frame[parsed.payload.clone()].to_vec();
            return (parsed, payload);
        }
    }
}

#[test]
fn parse__accepts_the_datagrams_of_a_kernel() {
    between_hosts(|host| NEAR.into_iter().zip(FAR).for_each(|ends| hear_kernel(host, ends)));
}

fn hear_kernel(host: &Host, (near, far): (&'static str, &'static str)) {
    let mut raw = Raw::open("near");
    let socket = far_socket(host, far);
    let to = SocketAddr::new(near.parse().unwrap(), PORT);
    for length in [0, 1, 17, 18, 19, 1_400] {
        let payload: Vec<u8> = (0..length).map(|number| number as u8).collect();
        // The kernel completes the sum of a datagram that comes in pieces, as for a device without offload.
        let (first, last) = payload.split_at(length / 2);
        sendto(&socket, first, SendFlags::MORE, &to).unwrap();
        sendto(&socket, last, SendFlags::empty(), &to).unwrap();
        socket.send_to(&payload, to).unwrap();
        for checksum in [Checksum::Right, Checksum::Partial] {
            let (parsed, received) = next_datagram(&mut raw);
            assert_eq!(received, payload);
            assert_eq!((parsed.from(), parsed.to_ip), (socket.local_addr().unwrap(), to.ip()));
            assert_eq!((parsed.checksum, parsed.is_marked), (checksum, false), "{length} bytes");
        }
    }
    let socket = Socket::from(socket);
    let marked = |codepoint| match to {
        SocketAddr::V4(_) => socket.set_tos_v4(codepoint).unwrap(),
        SocketAddr::V6(_) => socket.set_tclass_v6(codepoint).unwrap(),
    };
    for codepoint in 0..4 {
        marked(codepoint);
        socket.send_to(b"payload", &to.into()).unwrap();
        assert_eq!(next_datagram(&mut raw).0.is_marked, codepoint == 3);
    }
}

/// Receives a datagram: its bytes, its sender, and the class with the bits of ECN.
fn receive_with_class(socket: &Socket) -> (Vec<u8>, SocketAddr, u8) {
    let mut addr = SocketAddr::from(([0_u16; 8], 0)).into();
    let (mut bytes, mut control) = ([MaybeUninit::new(0); 2_048], [MaybeUninit::new(0); 64]);
    let mut buffers = [MaybeUninitSlice::new(&mut bytes)];
    let mut message =
        MsgHdrMut::new().with_addr(&mut addr).with_buffers(&mut buffers).with_control(&mut control);
    let count = socket.recvmsg(&mut message, 0).unwrap();
    // SAFETY: both arrays are initialized.
    let (bytes, class) = unsafe {
        // A control message begins with its length, level and kind. The class is its first byte in both families.
        let begin = size_of::<libc::cmsghdr>();
        (
            bytes[..count].iter().map(|byte| byte.assume_init()).collect(),
            control[begin].assume_init(),
        )
    };
    (bytes, addr.as_socket().unwrap(), class)
}

#[test]
fn write__is_received_by_a_kernel() {
    between_hosts(|host| NEAR.into_iter().zip(FAR).for_each(|ends| speak_to_kernel(host, ends)));
}

fn speak_to_kernel(host: &Host, (near, far): (&'static str, &'static str)) {
    let mut raw = Raw::open("near");
    let socket = Socket::from(far_socket(host, far));
    let to = socket.local_addr().unwrap().as_socket().unwrap();
    if to.is_ipv6() { socket.set_recv_tclass_v6(true) } else { socket.set_recv_tos_v4(true) }
        .unwrap();
    let from = near.parse().unwrap();
    let template = Template::new(from, to, NEAR_MAC, FAR_MAC);
    for length in [0, 1, 17, 18, 19, 1_400] {
        for is_ecn in [false, true] {
            let payload: Vec<u8> = (0..length).map(|number| number as u8).collect();
            let mut frame = vec![0; template.head_bytes()];
            frame.extend(&payload);
            template.write(&mut frame, length, PORT, is_ecn);
            // The kernel checks sums: of two frames, only the right one arrives.
            let mut wrong = frame.clone();
            wrong[template.head_bytes() - 1] ^= 1;
            raw.send(&wrong);
            raw.send(&frame);
            let expected = (payload, SocketAddr::new(from, PORT), if is_ecn { 2 } else { 0 });
            assert_eq!(receive_with_class(&socket), expected);
        }
    }
}
