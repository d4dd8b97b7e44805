//! Receive offload of a device (GRO) with alternating marked and unmarked packets: the device joins
//! packets, but never marked with unmarked ones.
//!
//! Three network namespaces in a row: sender, router, receiver. The sender's messages are cut
//! before the router, which marks packets by their contents, and the receiver's device joins
//! packets where it can. The test needs the programs `unshare`, `ip` and `nft`, and root.

use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

use petrel_netns::{
    Error, Host, bring_up, nft, run, switch_off_checksums, switch_off_offloads, switch_on_joining,
};
use petrel_skip::{Need, skip};

use super::ecn::{Heard, set_codepoint};
use super::*;
use crate::udp::ecn;
use crate::udp::receive::Trains;
use crate::udp::socket::enable_gro;

const SENDER: Ipv4Addr = Ipv4Addr::new(10, 98, 1, 2);
const RECEIVER: Ipv4Addr = Ipv4Addr::new(10, 98, 2, 2);
const SEGMENT_BYTES: usize = 1000;

/// First bytes of the datagrams of a message; the router marks a datagram with an odd one.
const FIRST_BYTES: &[u8; 30] = b"\x10\x10\x10\x10\x11\x11\x11\x10\x11\x10\x10\x11\x11\x11\x11\
    \x11\x10\x10\x10\x11\x11\x12\x12\x13\x13\x13\x13\x13\x12\x12";
const MESSAGES: usize = 20;

const MARKS: &str = "table ip petrel {
  chain way {
    type filter hook forward priority 0
    ip ecn ect0 @th,64,8 & 1 == 1 ip ecn set ce
  }
}";

/// How long packets may take on a busy machine.
const TIME_MAX: Duration = Duration::from_secs(30);

#[test]
fn rx_burst__of_a_device_that_joins_packets_keeps_marks_apart() {
    let router = thread::spawn(|| match hosts() {
        Ok([sender, receiver]) => keeps_marks_apart(&sender, &receiver),
        Err(why) => skip(Need::Offload, why),
    });
    if let Err(panic) = router.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Makes this thread's namespace a router between the two hosts that it returns.
fn hosts() -> Result<[Host; 2], Error> {
    petrel_netns::leave()?;
    let (sender, receiver) = (Host::new()?, Host::new()?);
    for (host, net, [here, there], address) in
        [(&sender, 1, ["r1", "one"], SENDER), (&receiver, 2, ["r2", "two"], RECEIVER)]
    {
        let router = Ipv4Addr::new(10, 98, net, 1);
        host.join(here, there)?;
        bring_up(here, router)?;
        host.bring_up(there, address)?;
        host.run("ip", &["route", "add", "default", "via", &router.to_string()], "")?;
    }
    run("sh", &["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"], "")?;
    nft(MARKS)?;
    // Without checksums by the device, it does not segment either.
    sender.spawn(|| switch_off_checksums("one")).join().expect("it returns errors")?;
    // If `r2` could send joined packets, the receiver's device would not join them itself.
    switch_off_checksums("r2")?;
    switch_off_offloads("r2")?;
    receiver.spawn(|| switch_on_joining("two")).join().expect("it returns errors")?;
    Ok([sender, receiver])
}

fn keeps_marks_apart(sender: &Host, receiver: &Host) {
    let socket = sender.spawn(|| UdpSocket::bind((SENDER, 0)).unwrap()).join().unwrap();
    set_codepoint(&socket, ecn::ECT_0 as u8);
    let cut = SEGMENT_BYTES as libc::c_int;
    set_int_option(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, cut).unwrap();
    let addr = socket.local_addr().unwrap();
    let udp = receiver.spawn(move || {
        let mut udp = Udp::bind(bind_to(&RECEIVER.to_string())).unwrap();
        assert!(enable_gro(udp.as_fd()));
        udp.add_peer(UdpLink { ecn: true, ..UdpLink::to(addr) }).unwrap();
        udp
    });
    let mut udp = udp.join().unwrap();

    let message = FIRST_BYTES.map(|first| [first; SEGMENT_BYTES]).concat();
    let (mut heard, mut longest) = (Heard::default(), 0);
    let deadline = Instant::now() + TIME_MAX;
    // One message at a time: neither the queue of a neighbour during its resolution nor the socket's buffer holds all.
    for sent in 1..=MESSAGES {
        socket.send_to(&message, udp.local_addr()).unwrap();
        while heard.0.len() < sent * FIRST_BYTES.len() {
            assert!(Instant::now() < deadline, "packets were lost: the test needs them all");
            udp.wait(Some(1_000_000_000));
            udp.refill();
            while udp.receiver.has_ready() {
                let train = udp.receiver.train();
                longest = longest.max(train.map_or(0, |train| train.datagram_count()));
                udp.deliver(1_000, &mut &mut heard);
            }
        }
    }
    let bytes: Vec<u8> = heard.0.iter().map(|(frame, _)| frame[0]).collect();
    assert_eq!(bytes, FIRST_BYTES.repeat(MESSAGES));
    for (frame, is_marked) in &heard.0 {
        assert_eq!(frame.len(), SEGMENT_BYTES);
        assert_eq!(*is_marked, frame[0] % 2 == 1, "first byte {:#x}", frame[0]);
    }
    if longest <= 1 {
        skip(Need::Offload, "the device joins no packets");
    }
}
