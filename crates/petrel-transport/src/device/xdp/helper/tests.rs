//! Clients of a helper without privileges: right ones, and attackers.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use petrel_skip::{Need, skip};
use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, bind, connect, recv, sendmsg, socket_with,
};

use super::super::super::Nic;
use super::super::interface::Interface;
use super::super::local::Local;
use super::super::socket::{Sizes, Socket};
use super::super::tests::{
    A, B, PORT, as_nobody, as_user, attached, bound, config, datagram, eventually, open, send,
    stream, with_pair,
};
use super::super::{Mode, Queues, State, Xdp, XdpConfig, XdpError};
use super::*;

const NOBODY: u32 = 65534;

/// A helper on interface `vb`, which serves while the closure runs.
fn with_helper<R>(uids: &[u32], inside: impl FnOnce(&Path) -> R) -> (R, Server) {
    static NUMBER: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("petrel-xdp-{}-{number}.sock", std::process::id());
    let path: PathBuf = std::env::temp_dir().join(name);
    let mut server = Server::open("vb", &path, Mode::Auto, uids).unwrap();
    let is_over = AtomicBool::new(false);
    let result = thread::scope(|scope| {
        let serving = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                server.turn(Duration::from_millis(5)).unwrap();
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| inside(&path)));
        is_over.store(true, Ordering::Relaxed);
        serving.join().unwrap();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    (result, server)
}

fn helped(path: &Path) -> XdpConfig {
    XdpConfig { helper: Some(path.to_owned()), ..config(Mode::Auto) }
}

#[test]
fn client__as_nobody_sends_and_receives_until_the_helper_ends() {
    with_pair(|| {
        let mut a = open(&config(Mode::Auto), "va", (A, PORT)).unwrap();
        let udp = bound((B, PORT));
        udp.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let (mut b, mut server) = with_helper(&[NOBODY], |path| {
            let mut b = as_nobody(|| Xdp::open(&helped(path), "vb", udp.as_fd()).unwrap());
            as_nobody(|| {
                stream(&mut a, &mut b, B, 1_000);
                stream(&mut b, &mut a, A, 1_000);
            });
            assert_eq!(b.state(), State::Up);
            b
        });
        // The helper stalls: packets go on.
        stream(&mut a, &mut b, B, 300);
        server.turn(Duration::ZERO).unwrap();
        assert_eq!(server.entered(), 1);
        drop(server);
        // For a moment, a process that another test starts may have copies of the helper's descriptors.
        eventually("the helper has ended", || b.state() == State::Unaided);
        udp.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        eventually("the kernel's socket gets packets again", || {
            assert!(send(&mut a, &datagram((B, PORT), 7, 99)));
            a.flush();
            udp.recv(&mut [0; 2000]).is_ok_and(|bytes| bytes == 99)
        });
    });
}

#[test]
fn client__that_goes_gives_back_port_and_queues() {
    with_pair(|| {
        let ((), mut server) = with_helper(&[NOBODY], |path| {
            let on = |queue| XdpConfig { queues: Queues::List(vec![queue]), ..helped(path) };
            let first = as_nobody(|| open(&on(0), "vb", (B, PORT)).unwrap());
            // Another port on another queue; the port again; the queue again.
            let second = as_nobody(|| open(&on(1), "vb", (B, PORT + 1)).unwrap());
            let taken = as_nobody(|| open(&on(1), "vb", (B, PORT + 2)).unwrap_err());
            // A busy helper may still have the port of the attempt before.
            let is_taken =
                matches!(taken, XdpError::QueuesTaken { .. } | XdpError::PortTaken { .. });
            assert!(is_taken, "{taken}");
            drop(first);
            // The helper closes the UDP socket's duplicate a moment later.
            eventually("the port is free", || UdpSocket::bind((B, PORT)).is_ok());
            let again = as_nobody(|| open(&on(0), "vb", (B, PORT)).unwrap());
            drop((second, again));
        });
        eventually("all is given back", || {
            server.turn(Duration::from_millis(5)).unwrap();
            server.entered() == 0
        });
    });
}

#[test]
fn port__stays_its_client_s_while_the_client_is_connected() {
    with_pair(|| {
        with_helper(&[], |path| {
            let b = open(&helped(path), "vb", (B, PORT)).unwrap();
            // The client has closed its UDP socket. The next owner of the port would lose its packets.
            UdpSocket::bind((B, PORT)).unwrap_err();
            UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap_err();
            drop(b);
        });
    });
}

#[test]
fn port__that_the_kernel_chose_stays_its_client_s_too() {
    with_pair(|| {
        with_helper(&[], |path| {
            let to = |port| std::net::SocketAddr::from((A, port));
            for is_connected in [false, true] {
                let udp = bound((B, 0));
                if is_connected {
                    udp.connect(to(PORT)).unwrap();
                }
                let own = udp.local_addr().unwrap();
                let b = Xdp::open(&helped(path), "vb", udp.as_fd()).unwrap();
                assert_eq!(udp.local_addr().unwrap(), own);
                assert_eq!(udp.peer_addr().ok(), is_connected.then_some(to(PORT)));
                // The client's own copy leaves the peer.
                udp.connect(to(PORT)).unwrap();
                rustix::net::connect_unspec(&udp).unwrap();
                assert_eq!(udp.local_addr().unwrap(), own);
                UdpSocket::bind(own).unwrap_err();
                drop(b);
            }
        });
    });
}

#[test]
fn port__that_has_changed_is_noticed() {
    with_pair(|| {
        let (udp, interface) = (bound((B, 0)), Interface::find("vb").unwrap());
        let local = Local::of(udp.as_fd(), &interface).unwrap();
        assert!(local.is_of(udp.as_fd()));
        rustix::net::connect_unspec(&udp).unwrap();
        assert!(!local.is_of(udp.as_fd()));
    });
}

#[test]
fn descriptor__bound_to_the_interface_stays_bound_to_it() {
    with_pair(|| {
        with_helper(&[], |path| {
            let udp = bound((B, PORT));
            let socket = socket2::SockRef::from(&udp);
            socket.bind_device(Some(b"vb")).unwrap();
            Xdp::open(&helped(path), "vb", udp.as_fd()).unwrap();
            assert_eq!(socket.device().unwrap().as_deref(), Some(&b"vb"[..]));
        });
    });
}

/// A connection that says anything.
struct Attacker(OwnedFd);

impl Attacker {
    fn new(path: &Path) -> Self {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        let time = Some(Duration::from_secs(10));
        rustix::net::sockopt::set_socket_timeout(&socket, Timeout::Recv, time).unwrap();
        Self(socket)
    }

    fn say(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(253))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        let flags = SendFlags::NOSIGNAL;
        sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, flags).unwrap();
    }

    /// Returns the status and the text of the answer.
    fn hears(&self) -> (u32, String) {
        let mut bytes = [0; HEAD_BYTES + TEXT_BYTES_MAX];
        // The helper may close with a request unread: the error comes before the answer.
        let first = recv(&self.0, &mut bytes, RecvFlags::empty());
        let received = first.or_else(|_| recv(&self.0, &mut bytes, RecvFlags::empty()));
        let count = received.expect("an answer").0;
        let (status, _) = parse(&bytes[..count]).expect("an answer");
        (status, String::from_utf8(bytes[HEAD_BYTES..count].to_vec()).unwrap())
    }

    /// Expects a refusal, and the end of the connection.
    fn is_refused(&self, why: &str) {
        let (status, said) = self.hears();
        assert!(status >= Status::Refused as u32 && said.contains(why), "{status}: {said}");
        let end = recv(&self.0, &mut [0; 64], RecvFlags::empty());
        assert!(matches!(end, Ok((0, _)) | Err(Errno::CONNRESET)), "it ends: {end:?}");
    }
}

fn hello() -> [u8; HEAD_BYTES] {
    head(Kind::Hello as u32, [VERSION, 0])
}

#[test]
fn garbage__is_refused() {
    with_pair(|| {
        with_helper(&[], |path| {
            let udp = bound((B, PORT));
            let fd = udp.as_fd();
            let try_one = |bytes: &[u8], fds: &[BorrowedFd<'_>], why: &str| {
                let attacker = Attacker::new(path);
                attacker.say(bytes, fds);
                attacker.is_refused(why);
            };
            try_one(b"x", &[], "twelve bytes");
            try_one(&[0xff; 13], &[fd], "twelve bytes");
            try_one(&[0xff; 12], &[], "no such request");
            try_one(&head(0, [0, 0]), &[fd], "no such request");
            try_one(&hello(), &[], "not with that many descriptors");
            try_one(&hello(), &[fd, fd], "not with that many descriptors");
            try_one(&hello(), &vec![fd; 253], "not with that many descriptors");
            try_one(&head(Kind::Hello as u32, [9, 0]), &[fd], "speaks version 1, not 9");
            try_one(&head(Kind::Create as u32, [64, 64]), &[], "shows its UDP socket first");
            try_one(&head(Kind::Create as u32, [64, 64]), &[fd], "not with that many descriptors");
            try_one(&head(Kind::Enter as u32, [0, 0]), &[], "no such socket");
            // More bytes than any request: the connection ends without a word.
            let attacker = Attacker::new(path);
            attacker.say(&[0; 4096], &[]);
            assert!(matches!(recv(&attacker.0, &mut [0; 9], RecvFlags::empty()), Ok((0, _))));
            // Nothing of all that harms others.
            Xdp::open(&helped(path), "vb", fd).unwrap();
        });
    });
}

#[test]
fn requests__after_the_first_are_refused_if_they_are_wrong() {
    with_pair(|| {
        with_helper(&[], |path| {
            for (port, request, why) in [
                (1, hello(), "has a port already"),
                (2, head(Kind::Create as u32, [0, 64]), "powers of two"),
                (3, head(Kind::Create as u32, [64, 1 << 31]), "powers of two"),
                (4, head(Kind::Create as u32, [100, 64]), "powers of two"),
                (5, head(Kind::Enter as u32, [0, 0]), "no such socket"),
                (6, head(Kind::Enter as u32, [u32::MAX, u32::MAX]), "no such socket"),
            ] {
                let udp = bound((B, PORT + port));
                let attacker = Attacker::new(path);
                attacker.say(&hello(), &[udp.as_fd()]);
                assert_eq!(attacker.hears().0, Status::Done as u32);
                let fds: &[_] = if port == 1 { &[udp.as_fd()] } else { &[] };
                attacker.say(&request, fds);
                attacker.is_refused(why);
            }
            // A socket without memory cannot be bound; a queue that there is not; too many sockets.
            let udp = bound((B, PORT));
            let attacker = Attacker::new(path);
            attacker.say(&hello(), &[udp.as_fd()]);
            assert_eq!(attacker.hears().0, Status::Done as u32);
            for _ in 0..64 {
                attacker.say(&head(Kind::Create as u32, [64, 1]), &[]);
                assert_eq!(attacker.hears().0, Status::Done as u32);
            }
            attacker.say(&head(Kind::Create as u32, [64, 1]), &[]);
            attacker.is_refused("at most 64 sockets");
            let attacker = Attacker::new(path);
            attacker.say(&hello(), &[udp.as_fd()]);
            assert_eq!(attacker.hears().0, Status::Done as u32);
            attacker.say(&head(Kind::Create as u32, [64, 1]), &[]);
            assert_eq!(attacker.hears().0, Status::Done as u32);
            attacker.say(&head(Kind::Enter as u32, [0, 0]), &[]);
            assert_eq!(attacker.hears().0, Status::QueueTaken as u32);
        });
    });
}

#[test]
fn descriptors__of_another_kind_or_place_are_refused() {
    with_pair(|| {
        with_helper(&[], |path| {
            let try_one = |fd: BorrowedFd<'_>, why: &str| {
                let attacker = Attacker::new(path);
                attacker.say(&hello(), &[fd]);
                attacker.is_refused(why);
            };
            let no_udp = "is no UDP socket";
            try_one(std::fs::File::open("/dev/null").unwrap().as_fd(), no_udp);
            try_one(TcpListener::bind((B, PORT)).unwrap().as_fd(), no_udp);
            try_one(std::os::unix::net::UnixDatagram::unbound().unwrap().as_fd(), no_udp);
            try_one(Attacker::new(path).0.as_fd(), no_udp);
            let raw = socket2::Socket::new(
                socket2::Domain::IPV4,
                socket2::Type::RAW,
                Some(socket2::Protocol::UDP),
            );
            try_one(raw.unwrap().as_fd(), no_udp);
            let kind = socket2::Type::DGRAM;
            let socket = |domain| socket2::Socket::new(domain, kind, None).unwrap();
            try_one(socket(socket2::Domain::IPV4).as_fd(), "not bound to a port");
            let other = "no address of the interface";
            try_one(bound((A, PORT)).as_fd(), other);
            petrel_netns::ip("link set lo up").unwrap();
            try_one(UdpSocket::bind(("127.0.0.1", PORT)).unwrap().as_fd(), other);
            // Bound to another interface, a socket shares its port with sockets of this one.
            let bound = socket(socket2::Domain::IPV4);
            bound.bind_device(Some(b"va")).unwrap();
            let any = std::net::SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT + 1));
            bound.bind(&any.into()).unwrap();
            try_one(bound.as_fd(), "bound to another interface");
            drop(bound);
            // Another namespace has a port and an address of its own.
            let elsewhere = thread::spawn(|| {
                petrel_netns::leave().unwrap();
                UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap()
            });
            try_one(elsewhere.join().unwrap().as_fd(), "another network namespace");
        });
    });
}

#[test]
fn descriptor__is_refused_to_a_second_process_until_the_first_goes() {
    with_pair(|| {
        with_helper(&[], |path| {
            let udp = bound((B, PORT));
            let first = Attacker::new(path);
            first.say(&hello(), &[udp.as_fd()]);
            assert_eq!(first.hears().0, Status::Done as u32);
            let replay = Attacker::new(path);
            replay.say(&hello(), &[udp.as_fd()]);
            replay.is_refused("another process has port 7000");
            drop(first);
            Xdp::open(&helped(path), "vb", udp.as_fd()).unwrap();
        });
    });
}

#[test]
fn socket__can_be_bound_to_no_other_interface() {
    with_pair(|| {
        with_helper(&[NOBODY], |path| {
            let udp = bound((B, PORT));
            let (a, b) = (Interface::find("va").unwrap(), Interface::find("vb").unwrap());
            as_nobody(|| {
                let client = Client::open(path, &b, udp.as_fd()).unwrap();
                let sizes = Sizes { receive: 64, send: 64 };
                let (fd, _) = client.create(sizes).unwrap();
                let socket = Socket::new(fd, "vb", sizes, client.frame_bytes_max(), None).unwrap();
                let to = |index| SocketAddrXdp::new(SocketAddrXdpFlags::XDP_COPY, index, 0);
                assert_eq!(bind(socket.fd(), &to(a.index())), Err(Errno::INVAL));
                assert!(socket2::SockRef::from(&socket.fd()).bind_device(Some(b"va")).is_err());
                assert!(socket2::SockRef::from(&socket.fd()).bind_device(None).is_err());
                assert_eq!(bind(socket.fd(), &to(b.index())), Ok(()));
            });
        });
    });
}

#[test]
fn memory__beyond_the_limit_names_the_bytes_and_the_setting() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    if limit.is_none_or(|limit| limit >= 16 << 20) {
        return skip(Need::Namespaces, "locked memory has no limit");
    }
    with_pair(|| {
        petrel_netns::ip("link set vb mtu 9000").unwrap();
        with_helper(&[NOBODY], |path| {
            let many = XdpConfig { chunks: 1 << 12, ..helped(path) };
            let said = as_nobody(|| open(&many, "vb", (B, PORT)).unwrap_err().to_string());
            // Of 4 KiB each.
            assert!(said.contains("`LimitMEMLOCK=16777216`"), "{said}");
            let both = XdpConfig { queues: Queues::List(vec![0, 1]), ..many };
            let said = as_nobody(|| open(&both, "vb", (B, PORT + 1)).unwrap_err().to_string());
            // With a chunk for sending on the second queue, as the kernel demands.
            assert!(said.contains("`LimitMEMLOCK=16781312`"), "{said}");
        });
    });
}

#[test]
fn user__who_is_not_allowed_is_refused() {
    with_pair(|| {
        with_helper(&[1, 2, 3], |path| {
            let said = || open(&helped(path), "vb", (B, PORT)).unwrap_err().to_string();
            let refused = as_nobody(said);
            assert!(refused.contains("is not among the allowed users"), "{refused}");
            as_user(2, || open(&helped(path), "vb", (B, PORT + 1)).unwrap());
            // Where the file system does not refuse, the helper does.
            let _ = rustix::fs::removexattr(path, server::ACL);
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o666)).unwrap();
            let refused = as_nobody(said);
            assert!(refused.contains("user 65534 is not among the allowed users"), "{refused}");
        });
    });
}

#[test]
fn descriptors__whose_close_waits_do_not_hold_up_the_helper() {
    with_pair(|| {
        let ((), mut server) = with_helper(&[], |_| ());
        let (stream, _listener) = lingering();
        let attacker = Attacker::new(server.path());
        // On the way, the descriptor is open: the helper's close is the last.
        attacker.say(&hello(), &[stream.as_fd()]);
        drop(stream);
        let start = std::time::Instant::now();
        // Three turns do, unless closing threads of other tests delay the first.
        for _ in 0..30 {
            server.turn(Duration::from_millis(5)).unwrap();
        }
        attacker.is_refused("no UDP socket");
        assert!(start.elapsed() < Duration::from_secs(30), "the close waits for a minute");
    });
}

#[test]
fn descriptors__beyond_the_closing_threads_are_closed_too() {
    let pairs = (0..100).map(|_| UnixStream::pair().unwrap());
    let (own, closed): (Vec<UnixStream>, Vec<OwnedFd>) =
        pairs.map(|(own, other)| (own, other.into())).unzip();
    drop(server::Elsewhere(closed));
    for mut own in own {
        own.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert_eq!(own.read(&mut [0]).unwrap(), 0);
    }
}

#[test]
fn clients__that_are_silent_hold_up_none() {
    with_pair(|| {
        with_helper(&[], |path| {
            // More than there are places, and none reads its answer.
            let silent: Vec<Attacker> = (0..150).map(|_| Attacker::new(path)).collect();
            silent.last().unwrap().is_refused("too many clients");
            drop(silent);
            eventually("a place", || open(&helped(path), "vb", (B, PORT)).is_ok());
        });
    });
}

#[test]
fn requests__without_end_hold_up_none_with_and_without_readers() {
    with_pair(|| {
        with_helper(&[], |path| {
            let enter = head(Kind::Enter as u32, [0, 0]);
            // The sockets have no memory: each request costs the helper a refusal of the kernel.
            let attackers = [1, 2, 3, 4].map(|number| {
                let (attacker, udp) = (Attacker::new(path), bound((B, PORT + number)));
                attacker.say(&hello(), &[udp.as_fd()]);
                assert_eq!(attacker.hears().0, Status::Done as u32);
                attacker.say(&head(Kind::Create as u32, [64, 1]), &[]);
                assert_eq!(attacker.hears().0, Status::Done as u32);
                attacker
            });
            let is_over = AtomicBool::new(false);
            thread::scope(|scope| {
                for (place, attacker) in attackers.iter().enumerate() {
                    let (is_reader, is_over) = (place % 2 == 0, &is_over);
                    scope.spawn(move || {
                        let say = || rustix::net::send(&attacker.0, &enter, SendFlags::NOSIGNAL);
                        while !(is_reader && is_over.load(Ordering::Relaxed)) && say().is_ok() {
                            if is_reader {
                                assert_eq!(attacker.hears().0, Status::QueueTaken as u32);
                            }
                        }
                        // The helper leaves a client that reads no answers.
                        assert!(is_reader || say().is_err());
                    });
                }
                eventually("an honest client is served", || {
                    open(&helped(path), "vb", (B, PORT)).is_ok()
                });
                is_over.store(true, Ordering::Relaxed);
            });
        });
    });
}

/// A connection with data that its peer does not take, and the peer.
fn lingering() -> (TcpStream, TcpListener) {
    petrel_netns::ip("link set lo up").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let linger = Some(Duration::from_secs(60));
    rustix::net::sockopt::set_socket_linger(&stream, linger).unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 1 << 16]).is_ok() {}
    stream.set_nonblocking(false).unwrap();
    (stream, listener)
}

#[test]
fn server__takes_the_path_of_a_helper_that_was_killed_and_no_other() {
    with_pair(|| {
        let _attached = attached("vb");
        let (path, server) = with_helper(&[], |path| {
            let said = Server::open("vb", path, Mode::Auto, &[]).unwrap_err().to_string();
            assert!(said.contains("cannot listen"), "{said}");
            path.to_owned()
        });
        // A helper that was killed removes nothing.
        let kept = path.with_extension("kept");
        std::fs::hard_link(&path, &kept).unwrap();
        drop(server);
        std::fs::rename(&kept, &path).unwrap();
        // For a moment, a process that another test starts may still listen.
        eventually("the path is taken", || Server::open("vb", &path, Mode::Auto, &[]).is_ok());
        assert!(!path.exists());
    });
}

#[test]
fn server__ends_with_its_interface() {
    with_pair(|| {
        let ((), mut server) = with_helper(&[], |_| ());
        petrel_netns::ip("link delete vb").unwrap();
        let said = end_of(&mut server);
        assert!(said.contains("no interface vb"), "{said}");
    });
}

/// Serves until the helper ends, and returns the reason.
fn end_of(server: &mut Server) -> String {
    let mut end = None;
    eventually("the helper ends", || {
        end = server.turn(Duration::from_millis(100)).err();
        end.is_some()
    });
    end.unwrap().to_string()
}

#[test]
fn server__ends_when_its_program_is_detached() {
    with_pair(|| {
        let ((), mut server) = with_helper(&[], |_| attached("vb").detach());
        let said = end_of(&mut server);
        assert!(said.contains("the XDP program was detached"), "{said}");
    });
}

#[test]
fn client__does_not_wait_for_ever_for_a_silent_helper() {
    with_pair(|| {
        let ((), server) = with_helper(&[], |_| ());
        let udp = bound((B, PORT));
        let interface = Interface::find("vb").unwrap();
        let said = Client::open(server.path(), &interface, udp.as_fd()).unwrap_err().to_string();
        assert!(said.contains("does not answer"), "{said}");
    });
}

#[test]
fn client__tells_another_user_s_listener() {
    let pair = || UnixStream::pair().unwrap().0;
    if !rustix::process::geteuid().is_root() {
        return skip(Need::Namespaces, "another user needs root");
    }
    let (of_root, of_nobody) = (pair(), as_nobody(pair));
    as_user(2, || client::check_listener(&of_root)).unwrap();
    as_nobody(|| client::check_listener(&of_nobody)).unwrap();
    as_user(2, || client::check_listener(&of_nobody)).unwrap_err();
}
