//! memcached's port inside TLS, and with passwords, over real sockets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use petrel::security::{SecureStream, Security, SecurityError, StreamCipher};
use petrel_cache::limits::{AUTH_FAILURES_MAX, TLS_SILENT_BYTES_MAX};
use petrel_cache::{CacheConfig, CacheServer, ServerError};
use petrel_tls::Credentials;
use petrel_tls::issue::{Authority, Issued, Subject};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A guard against hanging.
const LONG: Duration = Duration::from_secs(60);

const LOOPBACK: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

struct World {
    authority: Authority,
    issued: Issued,
}

impl World {
    fn new() -> Self {
        let authority = Authority::new("the test", DAY).unwrap();
        let issued = authority.issue(&Subject::new(DAY).name("127.0.0.1")).unwrap();
        Self { authority, issued }
    }

    fn credentials(&self) -> Arc<dyn Security> {
        let issued = &self.issued;
        let credentials = Credentials::builder()
            .certificate_pem(issued.certificate.as_bytes())
            .and_then(|builder| builder.key_pem(issued.key.as_bytes()))
            .and_then(|builder| builder.authorities_pem(issued.authority.as_bytes()))
            .and_then(petrel_tls::CredentialsBuilder::build);
        Arc::new(credentials.unwrap())
    }

    fn config(&self) -> CacheConfig {
        CacheConfig { threads: 2, security: Some(self.credentials()), ..CacheConfig::at(LOOPBACK) }
    }

    /// A client's end of TLS that trusts the authority, with a certificate or without one.
    fn tls(&self, has_certificate: bool) -> ClientConnection {
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(self.authority.certificate().as_bytes());
        roots.add(root.unwrap()).unwrap();
        let config = ClientConfig::builder().with_root_certificates(roots);
        let config = match has_certificate {
            true => {
                let issued = self.authority.issue(&Subject::new(DAY).name("client")).unwrap();
                let certificate = CertificateDer::from_pem_slice(issued.certificate.as_bytes());
                let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes());
                config.with_client_auth_cert(vec![certificate.unwrap()], key.unwrap()).unwrap()
            }
            false => config.with_no_client_auth(),
        };
        let name = ServerName::try_from("127.0.0.1").unwrap();
        ClientConnection::new(Arc::new(config), name).unwrap()
    }

    fn connect(&self, server: &CacheServer) -> StreamOwned<ClientConnection, TcpStream> {
        StreamOwned::new(self.tls(false), connect(server))
    }
}

fn connect(server: &CacheServer) -> TcpStream {
    let socket = TcpStream::connect(server.memcached().unwrap()).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    socket
}

#[track_caller]
fn ask(client: &mut (impl Read + Write), request: impl AsRef<[u8]>, reply: &str) {
    client.write_all(request.as_ref()).unwrap();
    client.flush().unwrap();
    let mut got = vec![0; reply.len()];
    client.read_exact(&mut got).unwrap();
    assert_eq!(String::from_utf8_lossy(&got), reply);
}

#[track_caller]
fn expect_end(client: &mut impl Read) {
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"");
}

/// The server closes a connection with unread bytes by a reset.
#[track_caller]
fn expect_end_or_reset(client: &mut impl Read) {
    if let Err(error) = client.read_to_end(&mut Vec::new()) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    }
}

#[test]
fn tls__carries_requests_over_the_borders_of_records() {
    let world = World::new();
    let server = CacheServer::start(&world.config()).unwrap();
    let mut client = world.connect(&server);
    ask(&mut client, "set a 1 0 2\r\nhi\r\nget a\r\n", "STORED\r\nVALUE a 1 2\r\nhi\r\nEND\r\n");
    // Each byte of these comes in a record of its own.
    for byte in b"mg a v\r\nget a" {
        client.write_all(&[*byte]).unwrap();
        client.flush().unwrap();
    }
    ask(&mut client, "\r\n", "VA 2\r\nhi\r\nVALUE a 1 2\r\nhi\r\nEND\r\n");
    let large = "v".repeat(1 << 20);
    for key in ["b", "c", "d"] {
        ask(&mut client, format!("set {key} 0 0 {}\r\n{large}\r\n", large.len()), "STORED\r\n");
    }
    let value = |key: &str| format!("VALUE {key} 0 {}\r\n{large}\r\n", large.len());
    let all = format!("{}{}{}END\r\n", value("b"), value("c"), value("d"));
    ask(&mut client, "get b c d\r\n", &all);
    let (mut requests, mut replies) = (String::new(), String::new());
    for number in 0..5_000 {
        requests += &format!("set k{number} 0 0 3\r\nabc\r\nget k{number}\r\n");
        replies += &format!("STORED\r\nVALUE k{number} 0 3\r\nabc\r\nEND\r\n");
    }
    ask(&mut client, requests, &replies);
    ask(&mut client, "quit\r\n", "");
    // TLS itself says that nothing follows: the end is no truncation.
    expect_end(&mut client);
    server.stop().unwrap();
}

#[test]
fn tls__takes_the_handshake_and_requests_in_small_pieces_of_records() {
    let world = World::new();
    let server = CacheServer::start(&world.config()).unwrap();
    let (mut tls, mut socket) = (world.tls(false), connect(&server));
    socket.set_nodelay(true).unwrap();
    tls.writer().write_all(b"set a 0 0 2\r\nhi\r\nget a\r\n").unwrap();
    let mut got = vec![0; b"STORED\r\nVALUE a 0 2\r\nhi\r\nEND\r\n".len()];
    let mut read = 0;
    while read < got.len() {
        let mut output = Vec::new();
        while tls.wants_write() {
            tls.write_tls(&mut output).unwrap();
        }
        output.chunks(7).for_each(|piece| socket.write_all(piece).unwrap());
        assert!(tls.read_tls(&mut socket).unwrap() > 0);
        tls.process_new_packets().unwrap();
        read += tls.reader().read(&mut got[read..]).unwrap_or(0);
    }
    assert_eq!(got, b"STORED\r\nVALUE a 0 2\r\nhi\r\nEND\r\n");
    // A client that says the end is told the end, although it keeps its socket open.
    tls.send_close_notify();
    tls.complete_io(&mut socket).unwrap();
    expect_end(&mut StreamOwned::new(tls, socket));
}

#[test]
fn tls__tells_a_client_without_tls_and_refuses_one_with_garbage() {
    let world = World::new();
    let server = CacheServer::start(&world.config()).unwrap();
    let mut plain = connect(&server);
    ask(&mut plain, "get a\r\n", "CLIENT_ERROR this port speaks TLS: connect with TLS\r\n");
    expect_end(&mut plain);
    let mut garbage = connect(&server);
    garbage.write_all(&[0x16; 100]).unwrap();
    let mut alert = Vec::new();
    garbage.read_to_end(&mut alert).unwrap();
    assert_eq!(alert.first(), Some(&0x15), "an alert of TLS");
    ask(&mut world.connect(&server), "mn\r\n", "MN\r\n");
}

/// Credentials that expire when the test says so.
#[derive(Debug)]
struct Expiring(Arc<dyn Security>, AtomicBool);

impl Security for Expiring {
    fn connect(
        &self,
        to: SocketAddr,
        name: Option<&str>,
    ) -> Result<Box<dyn SecureStream>, SecurityError> {
        self.0.connect(to, name)
    }

    fn accept(&self) -> Result<Box<dyn SecureStream>, SecurityError> {
        self.0.accept()
    }

    fn accept_other(&self, is_mutual: bool) -> Result<Box<dyn StreamCipher>, SecurityError> {
        match self.1.load(Ordering::Relaxed) {
            true => Err(SecurityError::new("expired")),
            false => self.0.accept_other(is_mutual),
        }
    }
}

#[test]
fn tls__counts_clients_that_expired_credentials_refuse() {
    let world = World::new();
    let expiring = Arc::new(Expiring(world.credentials(), AtomicBool::new(false)));
    let security: Arc<dyn Security> = expiring.clone();
    let config = CacheConfig { security: Some(security), ..world.config() };
    let server = CacheServer::start(&config).unwrap();
    let mut client = world.connect(&server);
    ask(&mut client, "mn\r\n", "MN\r\n");
    expiring.1.store(true, Ordering::Relaxed);
    expect_end(&mut connect(&server));
    client.write_all(b"stats\r\n").unwrap();
    let mut stats = String::new();
    while !stats.ends_with("END\r\n") {
        let mut piece = [0; 4_096];
        let count = client.read(&mut piece).unwrap();
        stats += std::str::from_utf8(&piece[..count]).unwrap();
    }
    assert!(stats.contains("STAT credential_errors 1\r\n"), "{stats}");
}

/// TLS forbids neither empty records nor updates of keys, in turn without end.
#[test]
fn tls__ends_a_client_that_sends_records_with_nothing_inside() {
    let world = World::new();
    let server = CacheServer::start(&world.config()).unwrap();
    let mut client = world.connect(&server);
    ask(&mut client, "mn\r\n", "MN\r\n");
    let mut sent = 0;
    while sent < 2 * TLS_SILENT_BYTES_MAX {
        client.conn.refresh_traffic_keys().unwrap();
        let mut output = Vec::new();
        while client.conn.wants_write() {
            client.conn.write_tls(&mut output).unwrap();
        }
        sent += output.len();
        if client.sock.write_all(&output).is_err() {
            break;
        }
    }
    expect_end_or_reset(&mut client.sock);
    ask(&mut world.connect(&server), "mn\r\n", "MN\r\n");
}

/// A ClientHello of the longest kind, which rustls collects before a look at it.
#[test]
fn tls__ends_a_handshake_that_is_too_long() {
    let world = World::new();
    let server = CacheServer::start(&world.config()).unwrap();
    let mut client = connect(&server);
    // Records of the handshake of 16 000 bytes each: a message of type 1 and of 65 000 bytes.
    let mut message = vec![1, 0, 0xFD, 0xE8];
    message.resize(60_000, 0);
    for piece in message.chunks(16_000) {
        let [high, low] = (piece.len() as u16).to_be_bytes();
        let _ = client.write_all(&[&[0x16, 3, 1, high, low], piece].concat());
    }
    expect_end_or_reset(&mut client);
    ask(&mut world.connect(&server), "mn\r\n", "MN\r\n");
}

#[test]
fn mutual__demands_a_certificate_of_clients() {
    let world = World::new();
    let config = CacheConfig { memcached_mutual: true, ..world.config() };
    let server = CacheServer::start(&config).unwrap();
    let mut known = StreamOwned::new(world.tls(true), connect(&server));
    ask(&mut known, "mn\r\n", "MN\r\n");
    for unknown in [
        world.tls(false),
        World { authority: Authority::new("b", DAY).unwrap(), ..World::new() }.tls(true),
    ] {
        let mut client = StreamOwned::new(unknown, connect(&server));
        let sent = client.write_all(b"mn\r\n").and_then(|()| client.flush());
        assert!(sent.and_then(|()| client.read_exact(&mut [0; 4])).is_err());
    }
}

#[test]
fn start__refuses_other_hosts_without_tls() {
    let world = World::new();
    let anywhere = SocketAddr::from(([0, 0, 0, 0], 0));
    let at = |config: CacheConfig| {
        CacheServer::start(&CacheConfig { memcached: Some(anywhere), ..config })
    };
    let refused = |config| match at(config) {
        Err(ServerError::Config(text)) => text,
        other => panic!("{other:?}"),
    };
    assert!(refused(CacheConfig::default()).contains("0.0.0.0:0, which is not encrypted"));
    let plain = || CacheConfig { memcached_plain: true, ..world.config() };
    assert!(refused(plain()).contains("leave out --memcached-plain"));
    assert!(refused(CacheConfig { memcached_mutual: true, ..plain() }).contains("need TLS"));
    at(CacheConfig { insecure: true, ..plain() }).unwrap().stop().unwrap();
    at(world.config()).unwrap().stop().unwrap();
    // On loopback the user may choose.
    let server = CacheServer::start(&plain()).unwrap();
    ask(&mut connect(&server), "mn\r\n", "MN\r\n");
    let no_port = CacheConfig { memcached: None, listen: Some(LOOPBACK), ..plain() };
    let no_port = CacheServer::start(&CacheConfig { memcached_mutual: true, ..no_port });
    assert!(no_port.unwrap_err().to_string().contains("--memcached"));
}

/// A file of passwords that goes with its test.
struct Passwords(PathBuf);

impl Passwords {
    fn new(name: &str, text: &str) -> Self {
        let file = std::env::temp_dir().join(format!("petrel-cache-{name}-{}", std::process::id()));
        let passwords = Self(file);
        passwords.write(text);
        passwords
    }

    fn write(&self, text: &str) {
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&self.0);
        file.unwrap().write_all(text.as_bytes()).unwrap();
    }
}

impl Drop for Passwords {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

const RIGHT: &str = "set auth 0 0 10\r\nann secret\r\n";

#[test]
fn auth__lets_no_command_pass_before_the_password() {
    fn dialogue(client: &mut (impl Read + Write)) {
        let refused = "CLIENT_ERROR unauthenticated\r\n";
        ask(client, "get a\r\nflush_all\r\nmn\r\nversion\r\n", &refused.repeat(4));
        ask(client, "set a 0 0 9\r\nann wrong\r\n", "CLIENT_ERROR authentication failure\r\n");
        for byte in RIGHT.as_bytes()[..RIGHT.len() - 1].iter() {
            ask(client, [*byte], "");
        }
        // Commands in the same bytes as the end of the password run.
        ask(client, "\nget auth\r\nset auth 0 0 1\r\nx\r\n", "STORED\r\nEND\r\nSTORED\r\n");
    }
    let world = World::new();
    let passwords = Passwords::new("auth", "ann:secret\n");
    let with_auth = |config| CacheConfig { memcached_auth: Some(passwords.0.clone()), ..config };
    let plain = CacheServer::start(&with_auth(CacheConfig::at(LOOPBACK))).unwrap();
    dialogue(&mut connect(&plain));
    let secured = CacheServer::start(&with_auth(world.config())).unwrap();
    dialogue(&mut world.connect(&secured));
    let mut settings = connect(&plain);
    ask(&mut settings, format!("{RIGHT}stats settings\r\nquit\r\n"), "STORED\r\n");
    let mut text = String::new();
    settings.read_to_string(&mut text).unwrap();
    assert!(text.contains("STAT auth_enabled_ascii yes\r\n") && !text.contains("secret"), "{text}");
}

#[test]
fn auth__ends_a_connection_after_some_wrong_passwords() {
    let passwords = Passwords::new("guesses", "ann:secret\n");
    let config =
        CacheConfig { memcached_auth: Some(passwords.0.clone()), ..CacheConfig::at(LOOPBACK) };
    let server = CacheServer::start(&config).unwrap();
    let mut client = connect(&server);
    let guesses = "set auth 0 0 9\r\nann wrong\r\n".repeat(AUTH_FAILURES_MAX as usize + 1);
    client.write_all((guesses + RIGHT).as_bytes()).unwrap();
    let mut text = String::new();
    let _ = client.read_to_string(&mut text);
    let refused = "CLIENT_ERROR authentication failure\r\n".repeat(AUTH_FAILURES_MAX as usize);
    assert_eq!(text, refused);
    ask(&mut connect(&server), RIGHT, "STORED\r\n");
}

#[test]
fn auth__closes_on_junk_and_reads_the_file_again() {
    let passwords = Passwords::new("again", "ann:secret\n");
    let config =
        CacheConfig { memcached_auth: Some(passwords.0.clone()), ..CacheConfig::at(LOOPBACK) };
    let server = CacheServer::start(&config).unwrap();
    let mut junk = connect(&server);
    junk.write_all(&[b'x'; 2_049]).unwrap();
    let mut text = String::new();
    junk.read_to_string(&mut text).unwrap();
    assert_eq!(text, "CLIENT_ERROR unauthenticated\r\n");

    let mut client = connect(&server);
    passwords.write("ann:other\n");
    loop {
        client.write_all(RIGHT.as_bytes()).unwrap();
        let mut first = [0; 1];
        client.read_exact(&mut first).unwrap();
        // The limit of the whole test ends this loop.
        match first[0] {
            b'S' => {
                // The former password still counts: this connection is in.
                client = connect(&server);
                std::thread::sleep(Duration::from_millis(10));
            }
            _ => break,
        }
    }
    let rest = "LIENT_ERROR authentication failure\r\n";
    ask(&mut client, "", rest);
    ask(&mut client, "set auth 0 0 9\r\nann other\r\n", "STORED\r\n");
    // A broken file leaves the former users in.
    passwords.write("ann\n");
    std::thread::sleep(Duration::from_millis(1_100));
    ask(&mut connect(&server), "set auth 0 0 9\r\nann other\r\n", "STORED\r\n");
}
