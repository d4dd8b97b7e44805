//! Clients that attack regions: guessed keys, ranges that overflow, revoked keys, and a writer that breaks the rules.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use petrel::region::{Access, MappedRights, Region, RegionMemory, Regions, RemoteRegion};
use petrel::{Client, Status};
use petrel_hostile::regions::{self, Key, PERMISSION_DENIED, Wrong, method, operation};
use petrel_hostile::{Connection, Session, Shape, frames};

use crate::HANG;
use crate::common::{ECHO, Server, over};

/// No multiple of a word.
const BYTES: u64 = 4_093;

/// Time without an answer after which the attacker repeats a request.
const REPEAT_AFTER: Duration = Duration::from_millis(200);

/// A session over UDP that sends any frames.
struct Attacker {
    socket: UdpSocket,
    session: Session,
    next: u64,
    _control: Connection,
}

impl Attacker {
    fn at(server: &Server) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut control = Connection::greet(server.address).unwrap();
        let port = socket.local_addr().unwrap().port();
        let link = control.open_link(1, port, 1_232, false).unwrap().unwrap();
        let session = control.open_session(&link, 1, Shape::default()).unwrap().unwrap();
        socket.connect(link.data).unwrap();
        socket.set_read_timeout(Some(REPEAT_AFTER)).unwrap();
        Self { socket, session, next: 0, _control: control }
    }

    /// Sends frames of the next request until its response comes. Returns the status and the message.
    fn exchange(&mut self, frames: impl Fn(&Session, u64) -> Vec<Vec<u8>>) -> (u8, Vec<u8>) {
        let number = self.next;
        self.next += 1;
        let began = Instant::now();
        let mut datagram = [0; 2_048];
        loop {
            assert!(began.elapsed() < HANG, "request {number} has no answer");
            for frame in frames(&self.session, number) {
                self.socket.send(&frame).unwrap();
            }
            while let Ok(len) = self.socket.recv(&mut datagram) {
                let datagram = &datagram[..len];
                let Some((kind, request, message)) = frames::parse(datagram) else { continue };
                if kind == frames::kind::RESPONSE && request == self.session.first_request + number
                {
                    return (frames::status(datagram).unwrap(), message.to_vec());
                }
            }
        }
    }

    fn call(&mut self, method: u16, request: &[u8]) -> (u8, Vec<u8>) {
        self.exchange(|session, number| vec![frames::request(session, number, method, request)])
    }
}

/// A server of a region of this process.
fn serve(memory: RegionMemory, access: Access) -> (Server, Regions, Region) {
    let regions = Regions::new();
    let region = regions.register(memory, access).unwrap();
    let served = regions.clone();
    let server = Server::start(over(true, true), "127.0.0.1:0", move |endpoint| {
        endpoint.serve_regions(&served)
    });
    (server, regions, region)
}

/// The key, as the attacker reads it from a message.
fn key_of(region: &Region) -> Key {
    let bytes = region.key().to_bytes();
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    let number = u32::from_le_bytes(std::array::from_fn(|i| bytes[i]));
    Key { region: number, secret: word(4), bytes: word(12) }
}

fn contents(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.key().bytes() as usize];
    region.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn guesses_and_ranges_that_overflow__are_refused_and_change_nothing() {
    const ROUNDS: u64 = 50;
    let access = Access::READ | Access::WRITE | Access::ATOMIC;
    let (server, regions, region) = serve(RegionMemory::private(BYTES).unwrap(), access);
    region.write(0, &[0x11; BYTES as usize]).unwrap();
    let key = key_of(&region);
    let mut attacker = Attacker::at(&server);
    let honest = RemoteRegion::new(&Client::connect_wait(server.address).unwrap(), region.key());
    for number in 0..ROUNDS * regions::KINDS {
        let Wrong { method, request, status } = regions::wrong(number, &key);
        let (got, message) = attacker.call(method, &request);
        let text = String::from_utf8_lossy(&message);
        assert_eq!(got, status, "operation {number}, method {method}: {text}");
        if number % 100 == 0 {
            assert_eq!(honest.read(8, 3).wait().unwrap(), [0x11; 3]);
        }
    }
    assert_eq!(contents(&region), [0x11; BYTES as usize]);
    let stats = regions.stats();
    assert_eq!((stats.refused, stats.writes, stats.atomics), (ROUNDS * regions::KINDS, 0, 0));
}

#[test]
fn a_revoked_key__reaches_neither_its_region_nor_the_next_of_its_number() {
    let access = Access::READ | Access::WRITE | Access::ATOMIC;
    let (server, regions, region) = serve(RegionMemory::private(BYTES).unwrap(), access);
    let key = key_of(&region);
    let mut attacker = Attacker::at(&server);
    assert_eq!(attacker.call(method::WRITE, &operation(&key, 0, 0, b"before")).0, 0);
    // The server keeps the memory, under another key.
    let kept = region.register_with(Access::READ).unwrap();
    drop(region);
    let next = regions.register(RegionMemory::private(BYTES).unwrap(), access).unwrap();
    assert_eq!(key_of(&next).region, key.region, "the number is taken again");
    for (method, length, data) in [
        (method::READ, 8, &[][..]),
        (method::WRITE, 0, b"after"),
        (method::COMPARE_SWAP, 0, &[0; 16]),
        (method::FETCH_ADD, 0, &[1; 8]),
        (method::READ_MANY, 8, &[]),
        (method::READ_VERSIONED, 8, &[]),
        (method::WRITE_VERSIONED, 0, b"after"),
        (method::MAP, 0, &[]),
    ] {
        let (status, _) = attacker.call(method, &operation(&key, 0, length, data));
        assert_eq!(status, PERMISSION_DENIED, "{method}");
    }
    assert!(contents(&kept).starts_with(b"before\0"));
    assert_eq!(contents(&next), [0; BYTES as usize]);
}

/// The packets of a large write take effect as they arrive, until the key is revoked.
#[test]
fn a_revocation_between_the_packets_of_a_write__keeps_the_others_out() {
    const LARGE: u64 = 3_600;
    let access = Access::READ | Access::WRITE;
    let (server, regions, region) = serve(RegionMemory::private(LARGE).unwrap(), access);
    let key = key_of(&region);
    let mut attacker = Attacker::at(&server);
    let kept = region.register_with(Access::READ).unwrap();
    let part = |session: &Session, number, packet| {
        let size = LARGE as u32 + 24;
        let mut frame = frames::request_part(session, number, method::WRITE, size, packet, 1);
        if packet == 0 {
            // Behind the frame's header and fields.
            frame[24..48].copy_from_slice(&operation(&key, 0, 0, &[]));
        }
        frame
    };
    attacker.socket.send(&part(&attacker.session, 0, 0)).unwrap();
    let began = Instant::now();
    let first = attacker.session.packet_bytes as usize - 24;
    while contents(&kept)[first - 1] == 0 {
        assert!(began.elapsed() < HANG, "the first packet does not take effect");
        thread::yield_now();
    }
    drop(region);
    let (status, _) = attacker
        .exchange(|session, number| (1..=3).map(|packet| part(session, number, packet)).collect());
    assert_eq!(status, PERMISSION_DENIED);
    let bytes = contents(&kept);
    assert!(bytes[..first].iter().all(|byte| *byte == 0x5A), "the first packet was in time");
    assert!(bytes[first..].iter().all(|byte| *byte == 0), "the others came too late");
    assert_eq!((regions.stats().refused, regions.stats().writes), (1, 0));
}

/// Sets a flag when it is dropped, also by a panic.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A process that maps the memory changes versions against all rules. Other clients are served, and reads end.
#[test]
fn a_mapped_writer_without_rules__stops_no_other_client() {
    let all = Access::READ | Access::WRITE | Access::ATOMIC | Access::MAP;
    let memory = RegionMemory::shared(4_096, MappedRights::ReadWrite).unwrap();
    let (server, _regions, region) = serve(memory, all);
    let client = Client::connect_wait(server.address).unwrap();
    let remote = RemoteRegion::new(&client, region.key());
    let mapped = remote.map_wait().unwrap();
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let _ends = SetAtEnd(&ends);
        scope.spawn(|| {
            for version in 0_u64.. {
                // Odd and even, forwards and backwards, with other bytes each time.
                mapped.store(0, version.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 3).unwrap();
                mapped.write(8, &[version as u8; 64]).unwrap();
                if ends.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let (mut read, mut aborted) = (0, 0);
        let began = Instant::now();
        // Until the writer has been seen at work, however late it gets a CPU.
        while aborted < 20 || read + aborted < 300 {
            assert!(began.elapsed() < HANG, "{read} values read, {aborted} aborted");
            match remote.read_versioned(0, 4_000).wait() {
                Ok(value) => {
                    assert_eq!(value.version % 2, 0);
                    read += 1;
                }
                Err(error) => {
                    assert_eq!(error.status, Status::Aborted);
                    aborted += 1;
                }
            }
            let mut own = [0; 64];
            if let Err(error) = region.read_versioned(0, &mut own) {
                assert_eq!(error.status, Status::Aborted);
            }
            assert_eq!(client.call(ECHO, "other").wait().unwrap(), b"other");
        }
    });
}
