//! Attacks on the control connection and on keys. All have to fail.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use petrel::client::Client;
use petrel::endpoint::AllowedTransports;
use petrel::region::{Access, RegionMemory, Regions, RemoteRegion};
use petrel::security::{Grant, LinkKeys, SecureStream, Security};
use petrel::server::RunningServer;
use petrel::{Server, Status};
use petrel_hostile::control::{Connection, Link, Session, Shape, kind, link_open};
use petrel_hostile::frames;
use petrel_tls::Credentials;
use petrel_tls::issue::{Issued, Subject};
use petrel_transport::seal::{HEAD_BYTES, TAG_BYTES};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;

use crate::common::{DAY, Folder, Pair, authority, credentials, named, read_all};

const COUNT: u16 = 1;

const STREAM: AllowedTransports =
    AllowedTransports { shm: false, udp: false, stream: true, verbs: false };

/// The number of records to change in a direction, one after another: the handshake, and the first messages of Petrel.
const RECORDS: usize = 5;

/// The proxy's behaviour, and counts of records.
#[derive(Default)]
struct Proxy {
    is_honest: AtomicBool,
    changed: AtomicU64,
    plain: AtomicU64,
}

impl Proxy {
    /// Passes records on, and flips a bit of record `number`.
    fn pass_on(&self, mut from: TcpStream, mut to: TcpStream, number: Option<usize>) {
        for record in 0.. {
            let mut head = [0; 5];
            if from.read_exact(&mut head).is_err() {
                break;
            }
            self.plain.fetch_add(u64::from(!(0x14..=0x17).contains(&head[0])), Ordering::Relaxed);
            let mut body = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
            if from.read_exact(&mut body).is_err() {
                break;
            }
            if number == Some(record) && !self.is_honest.load(Ordering::Relaxed) {
                let middle = body.len() / 2;
                body[middle] ^= 1;
                self.changed.fetch_add(1, Ordering::Relaxed);
            }
            if to.write_all(&[&head[..], &body].concat()).is_err() {
                break;
            }
        }
        // The end of one direction is the end of the connection.
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }

    /// Listens, and changes the record `number` to the server or to the client.
    fn start(self: &Arc<Self>, server: SocketAddr, number: usize, to_server: bool) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let proxy = Arc::clone(self);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(server).unwrap());
                let clone = |end: &TcpStream| end.try_clone().unwrap();
                let [there, back] = [to_server, !to_server].map(|is_it| is_it.then_some(number));
                let ways = [(clone(&client), clone(&server), there), (server, client, back)];
                for (from, to, number) in ways {
                    let proxy = Arc::clone(&proxy);
                    thread::spawn(move || proxy.pass_on(from, to, number));
                }
            }
        });
        address
    }
}

/// A server that counts its calls.
fn counting(credentials: Credentials) -> (RunningServer, Arc<AtomicU64>) {
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let server = Server::bind("127.0.0.1:0").credentials(Arc::new(credentials)).serve(
        move |_| Arc::clone(&counted),
        |endpoint| {
            endpoint.on(COUNT, |calls, cx, request| {
                calls.fetch_add(1, Ordering::Relaxed);
                request.reply(cx, b"")
            });
        },
    );
    (server.start().unwrap(), calls)
}

#[test]
fn proxy__that_changes_a_record_ends_the_connection_and_executes_nothing() {
    let authority = authority();
    let of = |name| named(&authority, name);
    let (server, calls) = counting(of("127.0.0.1"));
    let server = server.local_addr();
    thread::scope(|scope| {
        for (number, to_server) in (0..RECORDS).flat_map(|number| [(number, true), (number, false)])
        {
            let credentials = Arc::new(of("127.0.0.1"));
            scope.spawn(move || {
                let proxy = Arc::new(Proxy::default());
                let address = proxy.start(server, number, to_server);
                let client = Client::builder().credentials(credentials).transports(STREAM).lazy();
                let client = client.connect_wait(address).unwrap();
                // The first attempts may end before the record comes.
                let end = Instant::now() + Duration::from_secs(60);
                while proxy.changed.load(Ordering::Relaxed) < 2 {
                    let outcome = client.call(COUNT, b"").timeout(Duration::from_secs(2)).wait();
                    assert!(outcome.is_err(), "record {number}, to the server: {to_server}");
                    assert!(Instant::now() < end, "record {number} to the server: {to_server}");
                }
                assert_eq!(proxy.plain.load(Ordering::Relaxed), 0, "all is inside TLS");
            });
        }
    });
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    // The proxy without changes.
    let proxy = Arc::new(Proxy { is_honest: AtomicBool::new(true), ..Proxy::default() });
    let client = Client::builder().credentials(Arc::new(of("127.0.0.1"))).transports(STREAM);
    let client = client.connect_wait(proxy.start(server, 0, true)).unwrap();
    client.call(COUNT, b"").wait().unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[test]
fn region__of_a_server_is_closed_to_clients_with_rights_for_a_method() {
    let authority = authority();
    let regions = Regions::new();
    let memory = RegionMemory::private(4_096).unwrap();
    let region = regions.register(memory, Access::READ | Access::WRITE).unwrap();
    let served = regions.clone();
    let server = Server::bind("127.0.0.1:0").credentials(Arc::new(named(&authority, "127.0.0.1")));
    let server = server.serve(
        |_| (),
        move |endpoint| {
            endpoint.authorize(|peer| {
                let names = peer.identity.as_deref().map(|identity| &identity.dns_names[..]);
                match names {
                    Some([name]) if name == "admin" => Grant::all(),
                    _ => Grant::methods([COUNT]),
                }
            });
            endpoint.on(COUNT, |_, cx, request| request.reply(cx, b""));
            endpoint.serve_regions(&served);
        },
    );
    let server = server.start().unwrap();
    for transports in [STREAM, AllowedTransports::ALL] {
        let connect = |name| {
            let credentials = Arc::new(named(&authority, name));
            let client = Client::builder().credentials(credentials).transports(transports);
            client.connect_wait(server.local_addr()).unwrap()
        };
        let (admin, web) = (connect("admin"), connect("web"));
        let of = |client| RemoteRegion::new(client, region.key());
        of(&admin).write(0, b"petrel").wait().unwrap();
        web.call(COUNT, b"").wait().unwrap();
        let read = of(&web).read(0, 6).wait().unwrap_err();
        assert_eq!(read.status, Status::PermissionDenied, "{read}");
        let written = of(&web).write(0, b"wren").wait().unwrap_err();
        assert_eq!(written.status, Status::PermissionDenied, "{written}");
        assert!(of(&web).map_wait().is_err());
        assert_eq!(of(&admin).read(0, 6).wait().unwrap(), b"petrel");
    }
}

/// The variable of the inner process: the bytes to look for in memory, and a folder.
const INSIDE: &str = "PETREL_TEST_LOOKS_AT_ITS_MEMORY";

/// The mask of the bytes: the process gets the plain bytes from the files alone.
const MASK: u8 = 0x5a;

/// Returns true if the process has the bytes in writable memory.
fn has_in_memory(masked: &[u8]) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let memory = std::fs::File::open("/proc/self/mem").unwrap();
    let mut buffer = Vec::new();
    let mut found = false;
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let (begin, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [begin, end] = [begin, end].map(|text| u64::from_str_radix(text, 16).unwrap());
        buffer.resize((end - begin) as usize, 0);
        // Pages of the kernel cannot be read.
        if std::os::unix::fs::FileExt::read_exact_at(&memory, &mut buffer, begin).is_ok() {
            let is_it =
                |bytes: &[u8]| bytes.iter().zip(masked).all(|(one, key)| one ^ MASK == *key);
            found |= buffer.windows(masked.len()).any(is_it);
            buffer.fill(0);
        }
    }
    found
}

/// A core dump of a process has no key after the end of the key's use.
#[test]
fn key__is_not_in_memory_after_the_credentials_are_dropped() {
    let Ok(inside) = std::env::var(INSIDE) else {
        let authority = authority();
        let issued: Issued =
            authority.issue(&Subject::new(DAY).name("a").name("192.0.2.7")).unwrap();
        let folder = Folder::new();
        issued.write(folder.path()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).unwrap();
        // The private number of the curve, in PKCS #8.
        let der = key.secret_der();
        let head = b"\x02\x01\x01\x04\x20";
        let at = der.windows(5).position(|bytes| bytes == head).unwrap() + head.len();
        let masked = der[at..at + 32].iter().map(|byte| format!("{:02x}", byte ^ MASK));
        let value = format!("{} {}", masked.collect::<String>(), folder.path().display());
        let own = std::env::current_exe().unwrap();
        let name = "attacks::key__is_not_in_memory_after_the_credentials_are_dropped";
        let mut again = std::process::Command::new(own);
        let output = again.args(["--exact", name]).env(INSIDE, value).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    };
    let (masked, folder) = inside.split_once(' ').unwrap();
    let digits = (0..32).map(|at| u8::from_str_radix(&masked[2 * at..2 * at + 2], 16).unwrap());
    let masked: Vec<u8> = digits.collect();
    let read = |name| std::fs::read(std::path::Path::new(folder).join(name)).unwrap();
    let in_memory = Credentials::builder()
        .certificate_pem(&read("cert.pem"))
        .and_then(|builder| builder.authorities_pem(&read("ca.pem")))
        .and_then(|builder| builder.key_pem(&zeroize::Zeroizing::new(read("key.pem"))))
        .and_then(petrel_tls::CredentialsBuilder::build)
        .unwrap();
    assert!(has_in_memory(&masked), "these credentials keep the key");
    let from_files = Credentials::from_dir(folder).unwrap();
    for credentials in [in_memory, from_files] {
        let mut pair = Pair::of(&credentials, &credentials, None);
        pair.shake();
        pair.opener.link_keys([0; 8], true).unwrap();
        assert!(credentials.accept().is_ok());
    }
    assert!(!has_in_memory(&masked), "the key was left behind");
}

#[test]
fn credentials__of_one_host_are_no_use_under_another_name() {
    let authority = authority();
    let (server, calls) =
        counting(credentials(&authority.issue(&Subject::new(DAY).name("other.example")).unwrap()));
    let client = Client::builder().credentials(Arc::new(named(&authority, "client")));
    let error = client.connect_wait(server.local_addr()).unwrap_err().to_string();
    assert!(error.contains("and not for 127.0.0.1"), "{error}");
    assert_eq!(calls.load(Ordering::Relaxed), 0);
}

/// Carries a plain connection into TLS, for hostile peers with good credentials.
struct Bridge {
    address: SocketAddr,
    tls: Arc<Mutex<Box<dyn SecureStream>>>,
}

impl Bridge {
    fn to(server: SocketAddr, credentials: &Credentials) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tls = Arc::new(Mutex::new(credentials.connect(server, None).unwrap()));
        let bridge = Self { address: listener.local_addr().unwrap(), tls: Arc::clone(&tls) };
        thread::spawn(move || {
            let (plain, wire) = (listener.accept().unwrap().0, TcpStream::connect(server).unwrap());
            let clone = |end: &TcpStream| end.try_clone().unwrap();
            let ends = (clone(&plain), clone(&wire), Arc::clone(&tls));
            thread::spawn(move || carry(ends, true));
            carry((plain, wire, tls), false);
        });
        bridge
    }

    /// The keys of link 1 between the first endpoints.
    fn keys(&self) -> LinkKeys {
        self.tls.lock().unwrap().link_keys([1, 0, 0, 0, 0, 0, 0, 0], true).unwrap()
    }
}

/// Reads an end, and writes the consequences to the two ends.
fn carry(
    (mut plain, mut wire, tls): (TcpStream, TcpStream, Arc<Mutex<Box<dyn SecureStream>>>),
    is_from_wire: bool,
) {
    let mut buffer = [0; 4_096];
    while let Ok(length @ 1..) = if is_from_wire { &wire } else { &plain }.read(&mut buffer) {
        let (mut output, mut tls) = (Vec::new(), tls.lock().unwrap());
        match is_from_wire {
            true => drop(tls.receive(&buffer[..length])),
            false => tls.write(&buffer[..length]),
        }
        tls.take_output(&mut output);
        let _ = wire.write_all(&output);
        let _ = plain.write_all(&read_all(&mut **tls));
    }
}

/// A link of a hostile peer that names a port, with a session.
struct Named {
    keys: LinkKeys,
    key_path: u32,
    data: SocketAddr,
    session: Session,
    _connection: Connection,
}

impl Named {
    fn open(server: SocketAddr, credentials: &Credentials, port: u16) -> Self {
        let bridge = Bridge::to(server, credentials);
        let mut connection = Connection::greet(bridge.address).unwrap();
        let open = link_open(1, port, 1_472, false).with(13, 7_u32.to_le_bytes());
        connection.send(&open).unwrap();
        let accept = connection.receive_any(&[kind::LINK_ACCEPT]).unwrap();
        let offer = accept.value(4).unwrap();
        let data = SocketAddr::new(server.ip(), u16::from_le_bytes([offer[1], offer[2]]));
        let key_path = accept.number(13).unwrap() as u32;
        let link = Link { number: 1, data, max_frame: 1_472 };
        let session = connection.open_session(&link, 1, Shape::default()).unwrap().unwrap();
        Self { keys: bridge.keys(), key_path, data, session, _connection: connection }
    }

    /// Returns a call of `session`, sealed by the link's key with a number, for the path `key_path`.
    fn sealed(&self, number: u64, key_path: u32, session: &Session) -> Vec<u8> {
        let mut head = [0x0e; HEAD_BYTES];
        head[1..4].copy_from_slice(&key_path.to_le_bytes()[..3]);
        head[4..].copy_from_slice(&number.to_le_bytes());
        let mut bytes = frames::request(session, number, COUNT, b"");
        bytes.extend([0; TAG_BYTES]);
        self.keys.send.seal(number, &head, &mut bytes);
        [&head[..], &bytes].concat()
    }
}

#[test]
fn links__that_name_one_port_stay_apart() {
    let authority = authority();
    let (server, calls) = counting(named(&authority, "127.0.0.1"));
    let [port, other] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let named_port = port.local_addr().unwrap().port();
    let open = |name| Named::open(server.local_addr(), &named(&authority, name), named_port);
    let (ours, theirs) = (open("ours"), open("theirs"));
    assert_eq!(ours.data, theirs.data);
    assert_ne!(ours.key_path, theirs.key_path);
    let send = |from: &UdpSocket, datagram: &[u8]| {
        assert_eq!(from.send_to(datagram, ours.data).unwrap(), datagram.len());
    };
    let first = ours.sealed(0, ours.key_path, &ours.session);
    send(&port, &first);
    // Replayed; from an unnamed port; with the keys or the path of the wrong link; without seal.
    send(&port, &first);
    send(&other, &ours.sealed(1, ours.key_path, &ours.session));
    send(&port, &theirs.sealed(2, ours.key_path, &ours.session));
    send(&port, &ours.sealed(3, theirs.key_path, &theirs.session));
    send(&port, &theirs.sealed(4, theirs.key_path, &ours.session));
    send(&port, &frames::request(&ours.session, 5, COUNT, b""));
    // The server takes datagrams in order: the good ones come last.
    send(&port, &ours.sealed(6, ours.key_path, &ours.session));
    send(&port, &theirs.sealed(7, theirs.key_path, &theirs.session));
    port.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    for _ in 0..3 {
        assert!(port.recv(&mut [0; 2_048]).unwrap() > HEAD_BYTES + TAG_BYTES);
    }
    assert_eq!(calls.load(Ordering::Relaxed), 3);
}
