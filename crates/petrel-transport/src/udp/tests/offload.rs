//! Receive offload of a device (GRO) with alternating marked and unmarked packets: the device joins
//! packets, but never marked with unmarked ones.
//!
//! Three network namespaces in a row: sender, router, receiver. The sender's messages are cut
//! before the router, which marks packets by their contents, and the receiver's device joins
//! packets where it can. The test needs the programs `unshare`, `ip` and `nft`, and root or user
//! namespaces.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver as Inbox, Sender as Outbox, channel};
use std::time::{Duration, Instant};

use petrel_skip::{Need, skip};

use super::ecn::{Heard, set_codepoint};
use super::*;
use crate::udp::ecn;
use crate::udp::option::set_int_option;
use crate::udp::receive::Trains;
use crate::udp::socket::enable_gro;

/// Set in the process inside its own namespaces.
const INSIDE: &str = "PETREL_TEST_IN_OWN_NETWORK";
const NAME: &str =
    "udp::tests::offload::rx_burst__of_a_device_that_joins_packets_keeps_marks_apart";

/// The last output of the inside process; without any, it has failed.
const DONE: &str = "done in a network of its own";
const UNABLE: &str = "this cannot be tested in a network of its own: ";

const SENDER: &str = "10.98.1.2";
const RECEIVER: &str = "10.98.2.2";
const SEGMENT_BYTES: usize = 1000;

/// First bytes of the datagrams of a message; the router marks a datagram with an odd one.
const FIRST_BYTES: &[u8; 30] = b"\x10\x10\x10\x10\x11\x11\x11\x10\x11\x10\x10\x11\x11\x11\x11\
    \x11\x10\x10\x10\x11\x11\x12\x12\x13\x13\x13\x13\x13\x12\x12";
const MESSAGES: usize = 20;

// `linux/ethtool.h`.
const SET_CHECKSUMS: u32 = 0x17;
const SET_TCP_SEGMENTATION: u32 = 0x1f;
const SET_RECEIVE_OFFLOAD: u32 = 0x2c;

/// How long packets may take on a busy machine.
const TIME_MAX: Duration = Duration::from_secs(30);

/// Datagrams received so far.
static HEARD: AtomicUsize = AtomicUsize::new(0);

#[test]
fn rx_burst__of_a_device_that_joins_packets_keeps_marks_apart() {
    if std::env::var_os(INSIDE).is_some() {
        return match inside() {
            Ok(()) => println!("{DONE}"),
            Err(why) => println!("{UNABLE}{why}"),
        };
    }
    let mut obstacles = String::new();
    for flags in ["--net", "--user --map-root-user --net"] {
        let own = std::env::current_exe().unwrap();
        let mut command = Command::new("unshare");
        command.args(flags.split(' ')).arg(own).args(["--exact", NAME, "--nocapture"]);
        match said(command.env(INSIDE, "1")) {
            Ok(text) if text.contains(DONE) => return,
            Ok(text) if text.contains(UNABLE) => {
                obstacles.extend(text.lines().skip_while(|line| !line.starts_with(UNABLE)).take(1));
            }
            Err(text) if !text.contains("running 1 test") => obstacles += text.trim(),
            Ok(text) | Err(text) => panic!("{text}"),
        }
    }
    skip(Need::Offload, obstacles);
}

/// The output of a program, if it succeeds; or the reason why not.
fn said(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    if output.status.success() { Ok(text.concat()) } else { Err(text.concat()) }
}

/// Runs lines of a shell in this thread's namespace.
fn shell(lines: &str) -> Result<(), String> {
    said(Command::new("sh").args(["-ec", lines])).map(drop)
}

/// Moves the thread into a fresh namespace, and sends the thread's id for naming the namespace.
fn leave_network(say: &Outbox<String>) -> Result<(), String> {
    // SAFETY: a new network namespace shares no memory and no descriptor table; existing sockets
    // stay in their namespace.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(format!("no network namespace: {}", std::io::Error::last_os_error()));
    }
    let thread = rustix::thread::gettid().as_raw_nonzero().get().to_string();
    say.send(thread).map_err(|error| error.to_string())
}

/// Changes a feature of a device of this thread's namespace, as `ethtool -K` does.
fn set_device(device: &str, request: u32, value: u32) -> Result<(), String> {
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    let mut words = [request, value];
    // SAFETY: all-zero is a valid `ifreq`: a name without an end, and a null pointer.
    let mut ask: libc::ifreq = unsafe { std::mem::zeroed() };
    ask.ifr_name.iter_mut().zip(device.bytes()).for_each(|(to, byte)| *to = byte as libc::c_char);
    ask.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    let socket = UdpSocket::bind("0.0.0.0:0").map_err(|error| error.to_string())?;
    use std::os::fd::AsRawFd;
    // SAFETY: the request points to the two words the kernel reads for it.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut ask) };
    let error = std::io::Error::last_os_error();
    if result == 0 { Ok(()) } else { Err(format!("{device}, request {request:#x}: {error}")) }
}

/// The sender: waits for the devices, and sends to the address that comes when the receiver is
/// ready.
fn send(say: &Outbox<String>, go: &Inbox<SocketAddr>) -> Result<(), String> {
    leave_network(say)?;
    let Ok(_) = go.recv() else { return Ok(()) };
    // Without checksums by the device, it does not segment either.
    set_device("one", SET_CHECKSUMS, 0)?;
    shell(&format!(
        "ip a add {SENDER}/24 dev one; ip l set one up; ip r add default via 10.98.1.1"
    ))?;
    let socket = UdpSocket::bind((SENDER, 0)).map_err(|error| error.to_string())?;
    set_codepoint(&socket, ecn::ECT_0 as u8);
    let cut = SEGMENT_BYTES as libc::c_int;
    set_int_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, cut).unwrap();
    say.send(socket.local_addr().unwrap().port().to_string()).map_err(|error| error.to_string())?;
    let Ok(to) = go.recv() else { return Ok(()) };
    let message = FIRST_BYTES.map(|first| [first; SEGMENT_BYTES]).concat();
    for sent in 0..MESSAGES {
        // One message at a time: neither the queue of a neighbour during its resolution nor the
        // socket's buffer holds all.
        let deadline = Instant::now() + TIME_MAX;
        while HEARD.load(Ordering::Relaxed) < sent * FIRST_BYTES.len() {
            assert!(Instant::now() < deadline, "packets were lost: the test needs them all");
            std::thread::sleep(Duration::from_micros(100));
        }
        socket.send_to(&message, to).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// The receiver: collects its transport's frames, and the datagrams of the longest train.
fn receive(say: &Outbox<String>, go: &Inbox<SocketAddr>) -> Result<(), String> {
    leave_network(say)?;
    let Ok(_) = go.recv() else { return Ok(()) };
    shell(&format!(
        "ip a add {RECEIVER}/24 dev two; ip l set two up; ip r add default via 10.98.2.1"
    ))?;
    set_device("two", SET_RECEIVE_OFFLOAD, 1)?;
    let mut udp = Udp::bind(bind_to(RECEIVER)).map_err(|error| error.to_string())?;
    assert!(enable_gro(udp.as_fd()));
    say.send(udp.local_addr().port().to_string()).map_err(|error| error.to_string())?;
    let Ok(addr) = go.recv() else { return Ok(()) };
    udp.add_peer(UdpLink { addr, max_frame: None, ecn: true, source: None, sealed: None }).unwrap();
    say.send("ready".to_owned()).map_err(|error| error.to_string())?;
    let (mut heard, mut longest) = (Heard::default(), 0);
    let deadline = Instant::now() + TIME_MAX;
    while heard.0.len() < MESSAGES * FIRST_BYTES.len() && Instant::now() < deadline {
        udp.wait(Some(1_000_000_000));
        udp.refill();
        while udp.receiver.has_ready() {
            longest = longest.max(udp.receiver.train().map_or(0, |train| train.datagram_count()));
            udp.deliver(1_000, &mut &mut heard);
        }
        HEARD.store(heard.0.len(), Ordering::Relaxed);
    }
    let bytes: Vec<u8> = heard.0.iter().map(|(frame, _)| frame[0]).collect();
    assert_eq!(bytes, FIRST_BYTES.repeat(MESSAGES), "packets were lost: the test needs them all");
    for (frame, is_marked) in &heard.0 {
        assert_eq!(frame.len(), SEGMENT_BYTES);
        assert_eq!(*is_marked, frame[0] % 2 == 1, "first byte {:#x}", frame[0]);
    }
    if longest > 1 { Ok(()) } else { Err("the device joins no packets".to_owned()) }
}

/// The router, and the order of events.
fn inside() -> Result<(), String> {
    let start = |part: fn(&Outbox<String>, &Inbox<SocketAddr>) -> Result<(), String>| {
        let ((say, hear), (go, gone)) = (channel(), channel());
        (std::thread::spawn(move || part(&say, &gone)), hear, go)
    };
    let (sender, receiver) = (start(send), start(receive));
    let done = direct((&sender.1, &sender.2), (&receiver.1, &receiver.2));
    drop((sender.2, receiver.2));
    let ended = [sender.0, receiver.0].map(|part| part.join().expect("what it says is above"));
    ended.into_iter().chain([done]).collect()
}

type Line<'a> = (&'a Inbox<String>, &'a Outbox<SocketAddr>);

fn direct(sender: Line<'_>, receiver: Line<'_>) -> Result<(), String> {
    let word = |(hear, _): Line<'_>| hear.recv().map_err(|_| "a part has ended".to_owned());
    let tell =
        |(_, go): Line<'_>, addr: SocketAddr| go.send(addr).map_err(|error| error.to_string());
    let [one, two] = [word(sender)?, word(receiver)?];
    shell(&format!(
        "ip l add r1 type veth peer name one netns {one}; ip a add 10.98.1.1/24 dev r1; ip l set r1 up
         ip l add r2 type veth peer name two netns {two}; ip a add 10.98.2.1/24 dev r2; ip l set r2 up
         echo 1 > /proc/sys/net/ipv4/ip_forward
         echo 'table ip petrel {{
           chain way {{
             type filter hook forward priority 0
             ip ecn ect0 @th,64,8 & 1 == 1 ip ecn set ce
           }}
         }}' | nft -f -"
    ))?;
    // If `r2` could send joined packets, the receiver's device would not join them itself.
    set_device("r2", SET_CHECKSUMS, 0)?;
    set_device("r2", SET_TCP_SEGMENTATION, 0)?;
    let nowhere = "0.0.0.0:0".parse().unwrap();
    tell(sender, nowhere)?;
    tell(receiver, nowhere)?;
    let port = |line| word(line).map(|port| port.parse::<u16>().unwrap());
    let [from, to] = [port(sender)?, port(receiver)?];
    tell(receiver, SocketAddr::new(SENDER.parse().unwrap(), from))?;
    word(receiver)?;
    tell(sender, SocketAddr::new(RECEIVER.parse().unwrap(), to))
}
