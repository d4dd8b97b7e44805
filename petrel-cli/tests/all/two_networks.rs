//! The guide's two hosts: a server and a client in two network namespaces, and a reader of the wire.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use petrel_netns::{Host, bring_up};
use rustix::net::{AddressFamily, RecvFlags, SocketType, eth, recv, socket, sockopt};

use crate::common::{Server, petrel, stderr};
use crate::credentials::{Folder, succeed};
use crate::own_network::{self, Trial};

const SERVER: &str = "10.83.0.2";

/// The text of the calls; every packet of a message has a copy.
const MARKER: &[u8] = b"<a marker of the test>";

/// Reads the packets of all devices of this namespace.
struct Capture {
    is_over: Arc<AtomicBool>,
    reader: JoinHandle<Vec<u8>>,
}

impl Capture {
    fn start() -> Self {
        let wire = socket(AddressFamily::PACKET, SocketType::RAW, Some(eth::ALL)).unwrap();
        sockopt::set_socket_recv_buffer_size(&wire, 8 << 20).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_over);
        Self { is_over, reader: thread::spawn(move || read(&wire, &flag)) }
    }

    /// Returns all packets, one behind the other.
    fn end(self) -> Vec<u8> {
        self.is_over.store(true, Ordering::Relaxed);
        self.reader.join().unwrap()
    }
}

fn read(wire: &OwnedFd, is_over: &AtomicBool) -> Vec<u8> {
    let (mut all, mut packet) = (Vec::new(), vec![0; 1 << 17]);
    loop {
        // The flag is set after the last packet.
        let is_last = is_over.load(Ordering::Relaxed);
        loop {
            match recv(wire, &mut packet[..], RecvFlags::DONTWAIT) {
                Ok((length, _)) => all.extend_from_slice(&packet[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        if is_last {
            return all;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn two_hosts__call_by_credentials_and_the_wire_shows_nothing() {
    let trial = Trial {
        what: "network namespaces",
        script: "echo | unshare --net true && ip link add v type veth peer name w",
        input: "",
    };
    let test = "two_hosts__call_by_credentials_and_the_wire_shows_nothing";
    own_network::in_own_network(&trial, module_path!(), test, two_hosts);
}

fn two_hosts() {
    let host = Host::new().unwrap();
    host.join("v", "w").unwrap();
    bring_up("v", Ipv4Addr::new(10, 83, 0, 1)).unwrap();
    host.bring_up("w", SERVER.parse().unwrap()).unwrap();
    let folder = Folder::new("two-hosts");
    let [authority, server, client, message] =
        ["authority", "server", "client", "message"].map(|name| folder.path(name));
    succeed(&["cert", "ca", "--out", &authority]);
    succeed(&["cert", "issue", SERVER, "--ca", &authority, "--out", &server]);
    succeed(&["cert", "issue", "client", "--ca", &authority, "--out", &client]);
    fs::write(&message, MARKER.repeat(1_000)).unwrap();
    let data = format!("@{message}");

    let listen = format!("{SERVER}:0");
    let program = Path::new(env!("CARGO_BIN_EXE_petrel"));
    let serve = |flags: &[&str]| {
        Server::start_by(host.command(program), &[&["--listen", &listen][..], flags].concat())
    };
    let sealed = serve(&["--credentials", &server]);
    let plain = serve(&["--insecure"]);
    succeed(&["ping", &sealed.address, "--credentials", &client]);
    let refused = petrel(&["ping", &sealed.address]);
    assert!(stderr(&refused).contains("inside TLS only"), "{}", stderr(&refused));
    for (server, flags) in [(&sealed, &["--credentials", &client[..]][..]), (&plain, &[])] {
        for transport in ["udp", "stream"] {
            let capture = Capture::start();
            let call = ["call", &server.address, "--transport", transport, "--data", &data];
            let answer = succeed(&[&call[..], flags].concat());
            let wire = capture.end();
            assert!(answer.stdout.starts_with(MARKER));
            assert!(wire.len() > 2 * 1_000 * MARKER.len(), "request and response are on the wire");
            let is_readable = wire.windows(MARKER.len()).any(|bytes| bytes == MARKER);
            assert_eq!(is_readable, flags.is_empty(), "{transport} {flags:?}");
        }
    }
}
