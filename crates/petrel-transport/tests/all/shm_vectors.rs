//! The ring vectors of `docs/wire-vectors.md`, §13.7, at the two ends of a mapped segment.
#![cfg(not(loom))]
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use petrel_transport::shm::{Segment, Shm, ShmConfig, ShmLink, Side};
use petrel_transport::wake::Waker;
use petrel_transport::{PeerId, Transport, TxFrame};

const PAGE: &str = include_str!("../../../../docs/wire-vectors.md");

/// Number of blocks on the page: a page without its blocks must not pass.
const WELL_FORMED: usize = 4;
const BROKEN: usize = 6;

const RING_OFFSET: u64 = 4096;
const RECORD_BYTES: u64 = 64;

#[derive(Default)]
struct Vector {
    name: &'static str,
    at: u64,
    frames: Vec<Vec<u8>>,
    /// Offsets in the ring, with the bytes there.
    records: Vec<(u64, Vec<u8>)>,
    nothing: Option<u64>,
    is_broken: bool,
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: String = hex.split_whitespace().collect();
    let pairs = (0..digits.len()).step_by(2);
    pairs.map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

fn vectors() -> Vec<Vector> {
    let blocks = PAGE.split("\n```ring-vector\n").skip(1);
    blocks.map(|block| vector(block.split("\n```").next().unwrap())).collect()
}

fn vector(block: &'static str) -> Vector {
    let mut vector = Vector::default();
    for line in block.lines() {
        let (key, value) = line.split_once(": ").unwrap();
        match key {
            "name" => vector.name = value,
            "at" => vector.at = value.parse().unwrap(),
            "frames" => vector.frames = value.split(' ').map(bytes).collect(),
            "nothing" => vector.nothing = Some(value.parse().unwrap()),
            "record" | "broken" => {
                let (offset, hex) = value.split_once(' ').unwrap();
                vector.records.push((offset.parse().unwrap(), bytes(hex)));
                vector.is_broken |= key == "broken";
            }
            other => panic!("{}: what is {other}?", vector.name),
        }
    }
    vector
}

/// The two ends of a ring at a given position, its memory, and the consumer's id at the producer.
struct Ring {
    producer: Shm,
    consumer: Shm,
    to: PeerId,
    memory: OwnedFd,
}

impl Ring {
    fn at(position: u64) -> Self {
        let config =
            ShmConfig { ring_bytes: 64 << 10, max_frame_bytes: 2048, ..ShmConfig::default() };
        let end = || Shm::new(&config, Waker::new().unwrap());
        let (mut producer, mut consumer) = (end(), end());
        let segment = Segment::create(&config).unwrap();
        let memory = segment.as_fd().try_clone_to_owned().unwrap();
        let opened = Segment::from_fd(memory.try_clone().unwrap()).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let to = producer.add_peer(ShmLink::new(segment, Side::Creator, ours)).unwrap();
        consumer.add_peer(ShmLink::new(opened, Side::Opener, theirs)).unwrap();
        let mut ring = Self { producer, consumer, to, memory };
        for _ in 0..position / RECORD_BYTES {
            ring.send(&[b"x".to_vec()]);
            assert_eq!(ring.receive(), [b"x"]);
        }
        ring
    }

    fn send(&mut self, frames: &[Vec<u8>]) {
        let peer = self.to;
        let frames: Vec<_> =
            frames.iter().map(|frame| TxFrame { peer, head: frame, body: &[] }).collect();
        assert_eq!(self.producer.tx_burst(&frames), 0);
    }

    fn receive(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        self.consumer.rx_burst(9, |_, frame| frames.push(frame.to_vec()));
        frames
    }

    fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut found = vec![0; len];
        rustix::io::pread(&self.memory, &mut found[..], RING_OFFSET + offset).unwrap();
        found
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        rustix::io::pwrite(&self.memory, bytes, RING_OFFSET + offset).unwrap();
    }
}

#[test]
fn vectors__are_all_there() {
    let broken = vectors().iter().filter(|vector| vector.is_broken).count();
    assert_eq!((vectors().len() - broken, broken), (WELL_FORMED, BROKEN));
}

#[test]
fn tx_burst__writes_the_records_of_every_vector() {
    for vector in vectors().iter().filter(|vector| !vector.is_broken) {
        let mut ring = Ring::at(vector.at);
        ring.send(&vector.frames);
        for (offset, record) in &vector.records {
            assert_eq!(ring.read(*offset, record.len()), *record, "{}", vector.name);
        }
        assert_eq!(ring.read(vector.nothing.unwrap(), 8), [0; 8], "{}", vector.name);
    }
}

#[test]
fn rx_burst__reads_the_frames_of_every_vector() {
    for vector in vectors().iter().filter(|vector| !vector.is_broken) {
        let mut ring = Ring::at(vector.at);
        if let Some(nothing) = vector.nothing {
            ring.write(nothing, &[0; 8]);
        }
        // The first header last.
        for (offset, record) in vector.records.iter().rev() {
            ring.write(*offset, record);
        }
        assert_eq!(ring.receive(), vector.frames, "{}", vector.name);
    }
}

#[test]
fn rx_burst__gives_up_the_ring_of_every_broken_vector() {
    for vector in vectors().iter().filter(|vector| vector.is_broken) {
        let mut ring = Ring::at(vector.at);
        for (offset, record) in &vector.records {
            ring.write(*offset, record);
        }
        assert!(ring.receive().is_empty(), "{}", vector.name);
        assert_eq!(ring.consumer.stats().rx_broken_rings, 1, "{}", vector.name);
    }
}
