//! Bursts of datagrams that the library's keys seal and open, beside the cipher alone on the same bytes.

use std::hint::black_box;
use std::time::Instant;

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use petrel_command::failure::Failure;
use petrel_tls::{Suite, keys_from_secret};
use petrel_transport::seal::{DatagramKey, HEAD_BYTES, TAG_BYTES};

use petrel_bench::measure::statistics::median;

/// The suite that two ends agree on by default.
const SUITE: Suite = Suite::Aes128Gcm;

/// Pairs of windows for each figure.
const WINDOWS: usize = 61;

/// Bytes that a window works on: they stay in the second cache.
const WINDOW_BYTES: usize = 256 * 1024;

const HEAD: [u8; HEAD_BYTES] = *b"\x0e\x01\0\0\0\0\0\0\0\0\0\0";

/// Nanoseconds a datagram, to seal and to open, and the ratios of the same windows.
pub(super) struct Cost {
    pub(super) library_ns: [f64; 2],
    pub(super) alone_ns: [f64; 2],
    pub(super) ratio: [f64; 2],
}

/// One side of the comparison.
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

/// Measures datagrams of a length. Each is compared with the plain one after it was opened.
pub(super) fn measure(size: usize) -> Result<Cost, Failure> {
    let key = keys_from_secret(SUITE, &vec![7; SUITE.secret_bytes()])?;
    let alone = UnboundKey::new(&AES_128_GCM, &[7; 16]);
    let alone = Alone(LessSafeKey::new(alone.map_err(|_| Failure::because("a short key"))?));
    let plain: Vec<u8> = (0..size).map(|i| (i * 31) as u8).collect();
    let mut datagrams = vec![vec![0; size + TAG_BYTES]; (WINDOW_BYTES / size).max(8)];
    let mut windows = Vec::new();
    for _ in 0..WINDOWS {
        let library = window(&key, &plain, &mut datagrams)?;
        windows.push([library, window(&alone, &plain, &mut datagrams)?]);
    }
    let of = |figure: fn([[f64; 2]; 2], usize) -> f64| {
        [0, 1].map(|operation| {
            median(windows.iter().map(|sides| figure(*sides, operation))).unwrap_or(f64::NAN)
        })
    };
    Ok(Cost {
        library_ns: of(|[library, _], operation| library[operation]),
        alone_ns: of(|[_, alone], operation| alone[operation]),
        ratio: of(|[library, alone], operation| library[operation] / alone[operation]),
    })
}

/// Nanoseconds a datagram to seal and to open, of one window.
fn window(
    cipher: &impl Cipher,
    plain: &[u8],
    datagrams: &mut [Vec<u8>],
) -> Result<[f64; 2], Failure> {
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
        opened += usize::from(cipher.open(number, black_box(datagram)));
    }
    let open = begun.elapsed().as_nanos() as f64 / count;
    let are_right = datagrams.iter().all(|datagram| datagram[..plain.len()] == *plain);
    if opened < datagrams.len() || !are_right {
        return Err(Failure::because("a datagram did not open to the plain one"));
    }
    Ok([seal, open])
}
