//! Measures the cost of sealing datagrams beside the cipher alone, of handshakes, and of connections at rest.
//!
//! ```sh
//! cargo run --release -p petrel-tls --example seal_cost
//! ```
//!
//! Both sides of a comparison work on the same bytes in alternating windows, so that a busy host disturbs them alike. The figures are medians of the
//! windows, and of the windows' ratios. Every datagram is compared with the plain one after it was opened.

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use petrel::security::{SecureStream, Security};
use petrel_tls::issue::{Authority, Subject};
use petrel_tls::{Credentials, CredentialsBuilder, Suite, keys_from_secret};
use petrel_transport::seal::{DatagramKey, HEAD_BYTES, TAG_BYTES};

const SIZES: [usize; 4] = [64, 1_400, 8_900, 17_000];

/// Pairs of windows for each figure.
const WINDOWS: usize = 61;

/// Bytes that a window works on: they stay in the second cache.
const WINDOW_BYTES: usize = 256 * 1024;

const HEAD: [u8; HEAD_BYTES] = *b"\x0e\x01\0\0\0\0\0\0\0\0\0\0";

/// The two sides of a comparison.
trait Cipher {
    fn seal(&self, number: u64, bytes: &mut [u8]);
    fn open(&self, number: u64, bytes: &mut [u8]) -> bool;
}

impl Cipher for Box<dyn DatagramKey> {
    fn seal(&self, number: u64, bytes: &mut [u8]) {
        (**self).seal(number, &HEAD, bytes);
    }

    fn open(&self, number: u64, bytes: &mut [u8]) -> bool {
        (**self).open(number, &HEAD, bytes)
    }
}

/// The cipher alone: no derived vector, no trait object.
struct Alone(LessSafeKey);

fn nonce(number: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&number.to_ne_bytes());
    Nonce::assume_unique_for_key(nonce)
}

impl Cipher for Alone {
    fn seal(&self, number: u64, bytes: &mut [u8]) {
        let (plain, room) = bytes.split_at_mut(bytes.len() - TAG_BYTES);
        let tag = self.0.seal_in_place_separate_tag(nonce(number), Aad::from(&HEAD), plain);
        room.copy_from_slice(tag.expect("the datagram is short").as_ref());
    }

    fn open(&self, number: u64, bytes: &mut [u8]) -> bool {
        self.0.open_in_place(nonce(number), Aad::from(&HEAD), bytes).is_ok()
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Nanoseconds a datagram to seal and to open, of one window.
fn window(cipher: &impl Cipher, plain: &[u8], datagrams: &mut [Vec<u8>]) -> [f64; 2] {
    for datagram in &mut *datagrams {
        datagram[..plain.len()].copy_from_slice(plain);
    }
    let count = datagrams.len() as f64;
    let begun = Instant::now();
    for (number, datagram) in (0..).zip(&mut *datagrams) {
        cipher.seal(number, black_box(datagram));
    }
    let seal = begun.elapsed().as_nanos() as f64 / count;
    let begun = Instant::now();
    let mut opened = 0;
    for (number, datagram) in (0..).zip(&mut *datagrams) {
        opened += u64::from(cipher.open(number, black_box(datagram)));
    }
    let open = begun.elapsed().as_nanos() as f64 / count;
    assert_eq!(opened, datagrams.len() as u64, "all datagrams open");
    assert!(datagrams.iter().all(|datagram| datagram[..plain.len()] == *plain));
    [seal, open]
}

fn seal_cost(suite: Suite, cipher: &'static Algorithm) -> Result<(), Box<dyn Error>> {
    let key = keys_from_secret(suite, &vec![7; suite.secret_bytes()])?;
    let alone = UnboundKey::new(cipher, &vec![7; cipher.key_len()]);
    let alone = Alone(LessSafeKey::new(alone.map_err(|_| "the key is too short")?));
    for size in SIZES {
        let plain: Vec<u8> = (0..size).map(|i| (i * 31) as u8).collect();
        let count = (WINDOW_BYTES / size).max(8);
        let mut datagrams = vec![vec![0; size + TAG_BYTES]; count];
        let mut windows = Vec::new();
        for _ in 0..WINDOWS {
            let petrel = window(&key, &plain, &mut datagrams);
            windows.push((petrel, window(&alone, &plain, &mut datagrams)));
        }
        let figure = |operation: usize| {
            let petrel = median(windows.iter().map(|(petrel, _)| petrel[operation]).collect());
            let alone = median(windows.iter().map(|(_, alone)| alone[operation]).collect());
            let ratios = windows.iter().map(|(petrel, alone)| petrel[operation] / alone[operation]);
            format!("{petrel:>9.0} {alone:>9.0} {:>6.3}", median(ratios.collect()))
        };
        println!("{:<18} {size:>6} {} {}", format!("{suite:?}"), figure(0), figure(1));
    }
    let mut epochs = Vec::new();
    for _ in 0..WINDOWS {
        let begun = Instant::now();
        black_box(key.next());
        epochs.push(begun.elapsed().as_nanos() as f64);
    }
    println!("{:<18}   next {:>9.0} ns", format!("{suite:?}"), median(epochs));
    Ok(())
}

fn credentials(authority: &Authority, name: &str) -> Result<Credentials, Box<dyn Error>> {
    let day = Duration::from_secs(24 * 60 * 60);
    let issued = authority.issue(&Subject::new(day).name(name))?;
    Ok(Credentials::builder()
        .certificate_pem(issued.certificate.as_bytes())
        .and_then(|builder| builder.key_pem(issued.key.as_bytes()))
        .and_then(|builder| builder.authorities_pem(issued.authority.as_bytes()))
        .and_then(CredentialsBuilder::build)?)
}

type End = Box<dyn SecureStream>;

/// Carries a handshake and its tickets, and takes the keys of a link at both ends.
fn shake(client: &Credentials, server: &Credentials) -> Result<(End, End), Box<dyn Error>> {
    let mut opener = client.connect("192.0.2.7:4000".parse()?, Some("server"))?;
    let mut acceptor = server.accept()?;
    let mut bytes = Vec::new();
    loop {
        opener.take_output(&mut bytes);
        acceptor.receive(&bytes)?;
        let carried = bytes.len();
        bytes.clear();
        acceptor.take_output(&mut bytes);
        opener.receive(&bytes)?;
        if carried + bytes.len() == 0 {
            break;
        }
        bytes.clear();
    }
    assert!(opener.peer().is_some() && acceptor.peer().is_some());
    Ok((opener, acceptor))
}

/// Handshakes a second of both ends together, on this thread.
fn handshakes(is_resumed: bool) -> Result<f64, Box<dyn Error>> {
    let authority = Authority::new("authority of a measurement", Duration::from_secs(86_400))?;
    let (client, server) = (credentials(&authority, "client")?, credentials(&authority, "server")?);
    let mut seconds = Vec::new();
    for _ in 0..300 {
        // New credentials of the opener have no tickets.
        let fresh;
        let opener = if is_resumed {
            &client
        } else {
            fresh = credentials(&authority, "client")?;
            &fresh
        };
        let begun = Instant::now();
        let (opener, acceptor) = shake(opener, &server)?;
        seconds.push(begun.elapsed().as_secs_f64());
        let kind = if is_resumed && seconds.len() > 1 { "Resumed" } else { "Full" };
        assert!(format!("{opener:?} {acceptor:?}").matches(kind).count() == 2);
    }
    Ok(1.0 / median(seconds))
}

fn resident_bytes() -> Result<f64, Box<dyn Error>> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: f64 = statm.split(' ').nth(1).ok_or("statm has a second field")?.parse()?;
    Ok(pages * 4_096.0)
}

/// Resident bytes of an end at rest, those of C included.
fn rest() -> Result<f64, Box<dyn Error>> {
    let authority = Authority::new("authority of a measurement", Duration::from_secs(86_400))?;
    let (client, server) = (credentials(&authority, "client")?, credentials(&authority, "server")?);
    let mut pairs = Vec::with_capacity(2_100);
    for _ in 0..100 {
        pairs.push(shake(&client, &server)?);
    }
    let before = resident_bytes()?;
    for _ in 0..2_000 {
        pairs.push(shake(&client, &server)?);
    }
    Ok((resident_bytes()? - before) / 4_000.0)
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("ns a datagram       bytes      seal     alone  ratio      open     alone  ratio");
    seal_cost(Suite::Aes128Gcm, &AES_128_GCM)?;
    seal_cost(Suite::Aes256Gcm, &AES_256_GCM)?;
    seal_cost(Suite::ChaCha20Poly1305, &CHACHA20_POLY1305)?;
    println!(
        "handshakes a second, both ends on one thread: {:.0} full, {:.0} resumed",
        handshakes(false)?,
        handshakes(true)?
    );
    println!("resident bytes of an end at rest: {:.0}", rest()?);
    Ok(())
}
