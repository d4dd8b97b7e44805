//! An end of a connection inside TLS, with bytes of no honest peer (`docs/wire-protocol.md` §17.1).

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

use petrel::security::{SecureStream, Security};
use petrel_tls::{Credentials, issue};

use super::input::Input;

/// The key of both ends, which is no secret. Signatures by Ed25519 are equal in each run; the nonces and shares of a handshake are not, since
/// rustls draws them from the system.
const KEY: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f
-----END PRIVATE KEY-----
";

/// More than an end sends in a handshake, and in an alert.
const OUTPUT_BYTES_MAX: usize = 16 << 10;

/// Feeds an end with arbitrary bytes instead of the peer's, at any point of the handshake, or changes records of an open connection. No end
/// panics or sends much. Failed ends stay failed. The bytes read are always the first bytes written by the peer.
pub fn check(data: &[u8]) {
    let mut input = Input::new(data);
    let credentials = credentials();
    let opener = credentials.connect(([192, 0, 2, 7], 1).into(), Some("peer"));
    let acceptor = credentials.accept();
    let (mut honest, mut tested) =
        (End::new(opener.expect("a key")), End::new(acceptor.expect("a key")));
    let kind = input.byte();
    if kind & 1 != 0 {
        (honest, tested) = (tested, honest);
    }
    match kind >> 1 & 1 {
        0 => before_the_end_of_the_handshake(&mut input, honest, tested),
        _ => behind_the_handshake(&mut input, honest, tested),
    }
}

/// Makes credentials for an input alone: tickets of another input's connection would change the handshake.
fn credentials() -> Credentials {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("petrel-fuzz-tls-{}-{number}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    fs::create_dir(&folder).expect("a folder");
    let (key, known) = (folder.join("key.pem"), folder.join("known_peers"));
    // The library makes a file that others cannot read; only the text is replaced.
    issue::new_raw_key(&key).expect("a file");
    fs::write(&key, KEY).expect("a file");
    let fingerprint = issue::fingerprint_of_raw_key(&key).expect("a key");
    issue::pin(&known, "peer", fingerprint).expect("a file");
    let credentials = Credentials::raw_key(key, known).expect("a key");
    fs::remove_dir_all(folder).expect("the folder from above");
    credentials
}

/// One end, with all that it has written and read.
struct End {
    stream: Box<dyn SecureStream>,
    written: Vec<u8>,
    read: Vec<u8>,
    output_bytes: usize,
    has_failed: bool,
}

impl End {
    fn new(stream: Box<dyn SecureStream>) -> Self {
        let (written, read) = (Vec::new(), Vec::new());
        Self { stream, written, read, output_bytes: 0, has_failed: false }
    }

    fn write(&mut self, bytes: &[u8]) {
        self.stream.write(bytes);
        self.written.extend_from_slice(bytes);
    }

    fn output(&mut self) -> Vec<u8> {
        let mut output = Vec::new();
        self.stream.take_output(&mut output);
        self.output_bytes += output.len();
        // Each byte written has a record of its own in the worst case.
        assert!(self.output_bytes <= OUTPUT_BYTES_MAX + 64 * self.written.len());
        output
    }

    /// Passes bytes to the end, and checks all that it says.
    fn receive(&mut self, bytes: &[u8], peer: &End) {
        let result = self.stream.receive(bytes);
        assert!(!self.has_failed || result.is_err(), "an end that has failed goes on");
        if let Err(error) = &result {
            assert!(!error.is_empty());
        }
        self.has_failed = result.is_err();
        let mut buffer = [0; 1_000];
        loop {
            let length = self.stream.read(&mut buffer);
            if length == 0 {
                break;
            }
            assert!(!self.has_failed, "bytes are read behind an error");
            self.read.extend_from_slice(&buffer[..length]);
        }
        assert!(peer.written.starts_with(&self.read), "bytes that the peer has not written");
        if self.has_failed {
            assert!(self.stream.peer().is_none());
            assert!(self.stream.link_keys([0; 8], true).is_err());
        }
    }
}

/// Passes all bytes both ways.
fn carry(one: &mut End, other: &mut End) {
    loop {
        let (there, back) = (one.output(), other.output());
        if there.is_empty() && back.is_empty() {
            break;
        }
        other.receive(&there, one);
        one.receive(&back, other);
    }
    assert!(!one.has_failed && !other.has_failed, "honest ends agree");
}

/// Passes the first bytes of an honest end, and then those of the input, in pieces.
fn before_the_end_of_the_handshake(input: &mut Input<'_>, mut honest: End, mut tested: End) {
    tested.write(b"early");
    let (rounds, sizes) = (input.below(3), [1 + input.below(256), 1 + input.below(16)]);
    for _ in 0..rounds {
        let bytes = honest.output();
        tested.receive(&bytes, &honest);
        let bytes = tested.output();
        honest.receive(&bytes, &tested);
    }
    let mut bytes = honest.output();
    bytes.truncate(input.number() as usize);
    bytes.extend_from_slice(input.take(usize::MAX));
    let mut at = 0;
    for size in sizes.into_iter().cycle() {
        if at == bytes.len() {
            break;
        }
        let end = (at + size).min(bytes.len());
        tested.receive(&bytes[at..end], &honest);
        tested.output();
        at = end;
    }
    if tested.has_failed {
        tested.receive(b"\x16", &honest);
    }
}

/// Passes the records of an honest end changed, repeated, out of order or with others between, in an open connection.
fn behind_the_handshake(input: &mut Input<'_>, mut honest: End, mut tested: End) {
    carry(&mut honest, &mut tested);
    assert!(tested.stream.peer().is_some() && honest.stream.peer().is_some());
    let (mut records, mut is_honest) = (Vec::new(), true);
    while !input.is_empty() {
        let choice = input.byte();
        if choice & 1 == 0 || records.is_empty() {
            honest.write(&vec![choice; 1 + usize::from(choice >> 2)]);
            records.push(honest.output());
        }
        let newest = records.len() - 1;
        let mut record = records[newest].clone();
        match choice % 16 {
            1 => record = records[input.below(newest + 1)].clone(),
            3 => {
                let at = input.number() as usize % record.len();
                record[at] ^= input.byte();
            }
            5 => record.truncate(input.number() as usize % record.len()),
            7 => record.extend_from_slice(input.take(usize::from(choice >> 4))),
            9 => record = input.take(usize::from(choice)).to_vec(),
            11 => record.drain(..input.number() as usize % record.len()).for_each(drop),
            13 => record.rotate_left(1),
            _ => {}
        }
        is_honest &= choice & 1 == 0;
        tested.receive(&record, &honest);
        tested.output();
        if is_honest {
            assert_eq!(tested.read, honest.written, "honest records are read at once");
        }
    }
}
