//! Replays the inputs collected by the fuzz targets (`fuzz/corpus`), with the targets' code, and
//! checks the test vectors of datagrams in `docs/wire-vectors.md`, §10.
#![cfg(not(loom))]
#![allow(non_snake_case)]

use petrel_transport::bundle::{append, begin, frames};

#[path = "../../../fuzz/src/bundle.rs"]
pub mod bundle;
#[path = "../../../fuzz/src/input.rs"]
pub mod input;
#[path = "../../../fuzz/replay.rs"]
pub mod replay;
#[path = "../../../fuzz/src/ring.rs"]
pub mod ring;

use replay::replay;

#[test]
fn bundle__corpus() {
    replay("frame", 40, bundle::check);
}

#[test]
fn ring__corpus() {
    replay("ring", 50, ring::check);
}

const PAGE: &str = include_str!("../../../docs/wire-vectors.md");

/// Number of blocks on the page: a page without its blocks must not pass.
const WELL_FORMED: usize = 3;
const MALFORMED: usize = 6;

/// A ```` ```bundle-vector ```` block of the page: name, datagram, and frames, or `None` for a
/// malformed datagram.
struct Vector {
    name: &'static str,
    datagram: Vec<u8>,
    frames: Option<Vec<Vec<u8>>>,
}

fn vectors() -> Vec<Vector> {
    let blocks = PAGE.split("\n```bundle-vector\n").skip(1);
    blocks.map(|block| vector(block.split("\n```").next().unwrap())).collect()
}

fn vector(block: &'static str) -> Vector {
    let (name, rest) = block.strip_prefix("name: ").unwrap().split_once("\nhex:\n").unwrap();
    let (hex, last) = rest.rsplit_once('\n').unwrap_or(("", rest));
    let frames = match last.split_once(": ").unwrap() {
        ("frames", list) => Some(list.split(' ').map(bytes).collect()),
        ("malformed", _) => None,
        (other, _) => panic!("{name}: what is {other}?"),
    };
    Vector { name, datagram: bytes(hex), frames }
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: String = hex.split_whitespace().collect();
    assert!(digits.len().is_multiple_of(2), "odd number of digits: {hex}");
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
        .collect()
}

#[test]
fn vectors__are_all_there() {
    let well_formed = vectors().iter().filter(|vector| vector.frames.is_some()).count();
    assert_eq!((well_formed, vectors().len() - well_formed), (WELL_FORMED, MALFORMED));
}

#[test]
fn frames__match_every_vector() {
    for Vector { name, datagram, frames: expected } in vectors() {
        let found = frames(&datagram).map(|frames| frames.map(<[u8]>::to_vec).collect());
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn append__matches_every_well_formed_bundle() {
    let mut bundles = 0;
    for Vector { name, datagram, frames } in vectors() {
        let Some(frames) = frames.filter(|_| datagram[0] == 0x0F) else { continue };
        let mut buffer = vec![0; datagram.len()];
        let begun = begin(&mut buffer);
        let used = frames.iter().fold(begun, |used, frame| append(&mut buffer, used, &[], frame));
        assert_eq!((used, &buffer), (datagram.len(), &datagram), "{name}");
        bundles += 1;
    }
    assert_eq!(bundles, 2);
}
