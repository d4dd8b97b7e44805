//! Frames between the two ends of a veth pair, in a network namespace of the test's own.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use petrel_skip::{Need, skip};

use super::*;

pub(super) const PORT: u16 = 7000;
pub(super) const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(super) const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// Runs a test on a thread in a namespace with the veth pair `va` and `vb` of two queues each.
pub(super) fn with_pair(inside: impl FnOnce() + Send + 'static) {
    let thread = thread::spawn(|| {
        let made = petrel_netns::leave().and_then(|()| {
            let kind = "address 02:00:00:00:00:01 numrxqueues 2 numtxqueues 2";
            petrel_netns::ip(&format!("link add va {kind} type veth peer name vb {kind}"))?;
            petrel_netns::bring_up("va", A)?;
            petrel_netns::bring_up("vb", B)
        });
        match made {
            Ok(()) => inside(),
            Err(why) => skip(Need::Namespaces, why),
        }
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

pub(super) fn config(mode: Mode) -> XdpConfig {
    XdpConfig { mode, chunks: 256, ..XdpConfig::default() }
}

/// Waits for the kernel's bottom half, which may run on another processor.
pub(super) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(10), "never: {what}");
        thread::yield_now();
    }
}

/// Opens the device of an interface for a new UDP socket at an address.
pub(super) fn open(
    config: &XdpConfig,
    interface: &str,
    at: (Ipv4Addr, u16),
) -> Result<Xdp, XdpError> {
    Xdp::open(config, interface, bound(at).as_fd())
}

/// Binds a UDP socket. For a moment, a process that another test starts may have a copy of a socket that was closed.
pub(super) fn bound(at: (Ipv4Addr, u16)) -> UdpSocket {
    let mut socket = None;
    eventually("a free port", || {
        socket = UdpSocket::bind(at).ok();
        socket.is_some()
    });
    socket.unwrap()
}

/// Keeps the program of an interface attached, for the same reason.
pub(super) fn attached(interface: &str) -> Arc<Attached> {
    Attached::to(&Interface::find(interface).unwrap(), Mode::Auto).unwrap()
}

/// A datagram to a port of an address, with a number in its payload: for the kernel, too, a right one.
pub(super) fn datagram(to: (Ipv4Addr, u16), number: u64, payload: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0, 0x45, 0];
    frame.extend(((28 + payload) as u16).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 9]);
    frame.extend(to.0.octets());
    let words = frame[14..].as_chunks::<2>().0.iter();
    let sum = words.map(|word| u32::from(u16::from_be_bytes(*word))).sum::<u32>();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame.extend(999_u16.to_be_bytes());
    frame.extend(to.1.to_be_bytes());
    frame.extend(((8 + payload) as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(number.to_be_bytes());
    frame.resize(42 + payload, number as u8);
    frame
}

pub(super) fn send(device: &mut Xdp, frame: &[u8]) -> bool {
    let Some(memory) = device.begin() else { return false };
    memory[..frame.len()].copy_from_slice(frame);
    device.commit(frame.len());
    true
}

/// Sends `count` numbered frames from one end to the other, in bursts, and checks that each arrives once and whole.
pub(super) fn stream(from: &mut Xdp, to: &mut Xdp, address: Ipv4Addr, count: u64) {
    let frame = |number: u64| datagram((address, PORT), number, 8 + number as usize % 1400);
    let (mut sent, mut got) = (0, 0);
    while got < count {
        // The receiver has 128 chunks.
        while sent < count && sent - got < 32 && send(from, &frame(sent)) {
            sent += 1;
        }
        from.flush();
        eventually("a frame", || match to.received() {
            Some(received) => {
                assert_eq!(received, frame(got));
                got += 1;
                to.release();
                true
            }
            None => false,
        });
    }
    assert!(to.received().is_none());
}

fn both_ways(mode: Mode) {
    with_pair(move || {
        let mut a = open(&config(mode), "va", (A, PORT)).unwrap();
        let mut b = open(&config(mode), "vb", (Ipv4Addr::UNSPECIFIED, PORT)).unwrap();
        assert_eq!((a.frame_bytes_max(), a.receive_frames()), (1514, 128));
        // Every ring wraps round some 20 times.
        stream(&mut a, &mut b, B, 5_000);
        stream(&mut b, &mut a, A, 5_000);
        assert_eq!(a.dropped(), Dropped::default());
        assert_eq!(b.dropped(), Dropped::default());
        assert_eq!((a.state(), b.state()), (State::Up, State::Up));
    });
}

#[test]
fn frames__go_both_ways_in_generic_mode() {
    both_ways(Mode::Generic);
}

#[test]
fn frames__go_both_ways_in_native_mode() {
    both_ways(Mode::Native);
}

#[test]
fn frames__share_the_program_of_the_process_by_port_and_queue() {
    with_pair(|| {
        let on = |queue| XdpConfig { queues: Queues::List(vec![queue]), ..config(Mode::Auto) };
        let mut a = open(&config(Mode::Auto), "va", (A, PORT)).unwrap();
        let mut first = open(&on(0), "vb", (B, PORT)).unwrap();
        let second = open(&on(1), "vb", (B, PORT + 1)).unwrap();
        stream(&mut a, &mut first, B, 300);
        // The other endpoint's queue has no socket for this port: the kernel's socket gets the packets.
        drop(first);
        let kernel = bound((B, PORT));
        kernel.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert!(send(&mut a, &datagram((B, PORT), 5, 100)));
        a.flush();
        assert_eq!(kernel.recv(&mut [0; 2000]).unwrap(), 100);
        // A queue has one socket.
        let taken = open(&on(1), "vb", (B, PORT + 2)).unwrap_err();
        assert!(matches!(taken, XdpError::QueuesTaken { .. }), "{taken}");
        // A queue is found again once free.
        let third = open(&config(Mode::Auto), "vb", (B, PORT + 2)).unwrap();
        assert_eq!((third.fds().count(), second.fds().count()), (1, 1));
    });
}

#[test]
fn open__takes_one_queue_unless_several_are_listed() {
    with_pair(|| {
        let endpoints = [1, 2].map(|at| open(&config(Mode::Auto), "vb", (B, PORT + at)).unwrap());
        assert_eq!(endpoints.each_ref().map(Nic::receive_frames), [128; 2]);
        drop(endpoints);
        let both = XdpConfig { queues: Queues::List(vec![0, 1]), ..config(Mode::Auto) };
        let both = open(&both, "vb", (B, PORT)).unwrap();
        assert_eq!((both.fds().count(), both.receive_frames()), (2, 64));
    });
}

#[test]
fn state__tells_that_the_program_was_detached_and_the_next_device_attaches_another() {
    with_pair(|| {
        let mut a = open(&config(Mode::Auto), "va", (A, PORT)).unwrap();
        let on = XdpConfig { queues: Queues::List(vec![1]), ..config(Mode::Auto) };
        let b = open(&on, "vb", (B, PORT)).unwrap();
        attached("vb").detach();
        eventually("carrier", || (a.state(), b.state()) == (State::Up, State::Detached));
        // The first device stays open, as a device of another endpoint could.
        let mut again = open(&config(Mode::Auto), "vb", (B, PORT + 1)).unwrap();
        assert_eq!(again.state(), State::Up);
        assert!(send(&mut a, &datagram((B, PORT + 1), 5, 100)));
        a.flush();
        eventually("a frame", || again.received().is_some());
    });
}

#[test]
fn open__by_the_own_rights_if_the_default_helper_refuses() {
    with_pair(|| {
        let interface = Interface::find("va").unwrap();
        let (udp, none) = (bound((A, PORT)), Path::new("/nowhere/petrel.sock"));
        let by_own = || Access::open_either(none, &config(Mode::Auto), &interface, udp.as_fd());
        assert!(matches!(by_own(), Ok(Access::Own { .. })));
        let said = as_nobody(|| by_own().unwrap_err().to_string());
        assert!(said.starts_with("the helper at /nowhere/petrel.sock"), "{said}");
    });
}

#[test]
fn open__passes_over_a_queue_that_does_not_exist_unless_listed() {
    with_pair(|| {
        let interface = Interface::find("va").unwrap();
        let usual = config(Mode::Auto);
        let udp = bound((A, PORT));
        let access = Access::open(&usual, &interface, udp.as_fd()).unwrap();
        let sizes = Sizes { receive: 64, send: 64 };
        let open = |queues: &[u32]| access.open_member(&usual, "va", sizes, &mut queues.iter());
        assert!(matches!(open(&[9, 1]), Ok(Some(_))));
        let said = open(&[9]).unwrap_err().to_string();
        assert!(said.contains("the queue does not exist"), "{said}");
    });
}

#[test]
fn begin__is_none_while_the_link_is_down_and_goes_on_afterwards() {
    with_pair(|| {
        let mut a = open(&config(Mode::Auto), "va", (A, PORT)).unwrap();
        let larger = XdpConfig { chunks: 512, ..config(Mode::Auto) };
        let mut b = open(&larger, "vb", (B, PORT)).unwrap();
        stream(&mut a, &mut b, B, 100);
        petrel_netns::ip("link set va down").unwrap();
        assert_eq!(a.state(), State::Down);
        let frames = (0..1_000).take_while(|number| send(&mut a, &datagram((B, PORT), *number, 8)));
        assert_eq!(frames.count(), 128, "half of the chunks are for sending");
        assert_eq!(a.flush(), 1, "one system call learns that nothing is sent");
        assert!(a.begin().is_none() && a.has_unsent());
        petrel_netns::ip("link set va up").unwrap();
        eventually("carrier", || (a.state(), b.state()) == (State::Up, State::Up));
        // The frames that waited come out. Four calls send 32 each.
        let mut got = 0;
        eventually("the frames", || {
            a.flush();
            while b.received().is_some() {
                b.release();
                got += 1;
            }
            got == 128
        });
        assert!(!a.has_unsent());
        stream(&mut a, &mut b, B, 1_000);
    });
}

#[test]
fn state__tells_that_the_device_was_deleted() {
    with_pair(|| {
        let mut a = open(&config(Mode::Auto), "va", (A, PORT)).unwrap();
        let mut b = open(&config(Mode::Auto), "vb", (B, PORT)).unwrap();
        stream(&mut a, &mut b, B, 100);
        petrel_netns::ip("link delete va").unwrap();
        assert_eq!((a.state(), b.state()), (State::Gone, State::Gone));
        while send(&mut a, &datagram((B, PORT), 0, 8)) {}
        assert_eq!(a.flush(), 1);
        assert!(a.begin().is_none() && a.received().is_none() && b.received().is_none());
        // Both can be dropped, and a device of the same name is another one.
        drop((a, b));
        petrel_netns::ip("link add va type veth peer name vb").unwrap();
        petrel_netns::bring_up("va", A).unwrap();
        petrel_netns::bring_up("vb", B).unwrap();
        let mut a = open(&config(Mode::Auto), "va", (A, PORT)).unwrap();
        let mut b = open(&config(Mode::Auto), "vb", (B, PORT)).unwrap();
        stream(&mut a, &mut b, B, 100);
    });
}

#[test]
fn bursts__beyond_the_receive_chunks_are_counted_as_lost() {
    with_pair(|| {
        let mut a = open(&config(Mode::Auto), "va", (A, PORT)).unwrap();
        let on = XdpConfig { queues: Queues::List(vec![0]), chunks: 128, ..config(Mode::Auto) };
        let b = open(&on, "vb", (B, PORT)).unwrap();
        for number in 0..128 {
            assert!(send(&mut a, &datagram((B, PORT), number, 8)));
        }
        assert!(a.flush() >= 4);
        eventually("losses", || b.dropped().receive + b.dropped().fill_empty >= 64);
    });
}

#[test]
fn create__makes_room_for_the_whole_ring_in_the_send_buffer() {
    with_pair(|| {
        let send = CHUNKS_MAX / 2;
        let socket = socket::create(Sizes { receive: 64, send }).unwrap();
        let bytes = rustix::net::sockopt::socket_send_buffer_size(&socket).unwrap();
        assert!(bytes >= send as usize * 8448, "{bytes}");
    });
}

#[test]
fn open__says_what_is_wrong() {
    with_pair(|| {
        let _attached = attached("va");
        let said = |config: &XdpConfig, interface: &str, at: (Ipv4Addr, u16)| {
            open(config, interface, at).unwrap_err().to_string()
        };
        let usual = config(Mode::Auto);
        let no_interface = said(&usual, "nowhere", (A, PORT));
        assert!(no_interface.contains("no interface nowhere"), "{no_interface}");
        let other = said(&usual, "va", (B, PORT));
        assert!(other.contains("bound to no address of the interface"), "{other}");
        let zero = said(&config(Mode::ZeroCopy), "va", (A, PORT));
        assert!(zero.contains("choose a copy mode"), "{zero}");
        let missing = XdpConfig { queues: Queues::List(vec![9]), ..usual.clone() };
        let missing = said(&missing, "va", (A, PORT));
        assert!(missing.contains("the queue does not exist"), "{missing}");
        for queues in [vec![], vec![0, 0], vec![0, 1, 2, 3]] {
            let said =
                said(&XdpConfig { queues: Queues::List(queues), ..usual.clone() }, "va", (A, PORT));
            assert!(said.contains("queues is ["), "{said}");
        }
        for chunks in [0, 64, 100, 129, 1 << 13] {
            let said = said(&XdpConfig { chunks, ..usual.clone() }, "va", (A, PORT));
            assert!(said.starts_with(&format!("chunks is {chunks}, ")), "{said}");
        }
    });
}

#[test]
fn open__with_another_program_says_so() {
    with_pair(|| {
        // As another process would: by a program outside of the registry.
        let interface = Interface::find("va").unwrap();
        let program = program::Program::load(1514).unwrap();
        let link = program.attach(interface.index(), bpf::FLAGS_SKB_MODE).unwrap();
        for mode in [Mode::Auto, Mode::Generic, Mode::Native] {
            let said = open(&config(mode), "va", (A, PORT)).unwrap_err().to_string();
            assert!(said.starts_with("va: another XDP program is attached"), "{said}");
        }
        drop(link);
        eventually("no program", || open(&config(Mode::Auto), "va", (A, PORT)).is_ok());
    });
}

/// Runs a closure on a thread of the unprivileged user 65534, without any capability.
pub(super) fn as_nobody<R: Send>(run: impl FnOnce() -> R + Send) -> R {
    as_user(65534, run)
}

pub(super) fn as_user<R: Send>(uid: u32, run: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let user = rustix::process::Uid::from_raw(uid);
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            run()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn open__without_the_right_names_the_capabilities() {
    with_pair(|| {
        let said =
            as_nobody(|| open(&config(Mode::Auto), "va", (A, PORT)).unwrap_err().to_string());
        assert!(said.contains("grant CAP_NET_ADMIN and CAP_BPF"), "{said}");
    });
}
