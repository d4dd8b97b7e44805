//! Accepted and refused settings and descriptors of segments.
#![cfg(not(loom))]
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use petrel_transport::MIN_FRAME_BYTES;
use petrel_transport::shm::{
    MAX_RING_BYTES, MIN_RING_BYTES, Segment, ShmConfig, ShmError, ShmLink, Side,
};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

fn small() -> ShmConfig {
    ShmConfig { ring_bytes: 64 << 10, max_frame_bytes: 2048, ..ShmConfig::default() }
}

fn setting_refused(config: ShmConfig) -> &'static str {
    match (config.validate(), Segment::create(&config)) {
        (Err(ShmError::Config { setting, .. }), Err(ShmError::Config { .. })) => setting,
        other => panic!("{config:?} gave {other:?}"),
    }
}

#[test]
fn validate__names_the_setting() {
    assert!(ShmConfig::default().validate().is_ok());
    for ring_bytes in [0, MIN_RING_BYTES / 2, MIN_RING_BYTES + 1, MAX_RING_BYTES * 2, usize::MAX] {
        assert_eq!(setting_refused(ShmConfig { ring_bytes, ..small() }), "ring_bytes");
    }
    for max_frame_bytes in [0, MIN_FRAME_BYTES - 1, (64 << 10) / 2 - 7, usize::MAX] {
        assert_eq!(setting_refused(ShmConfig { max_frame_bytes, ..small() }), "max_frame_bytes");
    }
    for max_peers in [0, (u32::MAX as usize) + 1, usize::MAX] {
        assert_eq!(setting_refused(ShmConfig { max_peers, ..small() }), "max_peers");
    }
    for at_its_end in [
        ShmConfig { ring_bytes: MIN_RING_BYTES, ..small() },
        ShmConfig { ring_bytes: MAX_RING_BYTES, ..small() },
        ShmConfig { max_frame_bytes: MIN_FRAME_BYTES, ..small() },
        ShmConfig { max_frame_bytes: (64 << 10) / 2 - 8, ..small() },
        ShmConfig { max_peers: 1, ..small() },
        ShmConfig { max_peers: u32::MAX as usize, ..small() },
    ] {
        assert!(at_its_end.validate().is_ok(), "{at_its_end:?}");
    }
}

#[test]
fn sizes__are_those_of_the_configuration_at_either_end() {
    for (ring_bytes, max_frame_bytes) in
        [(64 << 10, 2048), (128 << 10, 2049), (MIN_RING_BYTES, MIN_FRAME_BYTES)]
    {
        let config = ShmConfig { ring_bytes, max_frame_bytes, ..ShmConfig::default() };
        let segment = Segment::create(&config).unwrap();
        let opened = Segment::from_fd(segment.as_fd().try_clone_to_owned().unwrap()).unwrap();
        let (bell_a, bell_b) = UnixStream::pair().unwrap();
        for (segment, side, bell) in
            [(segment, Side::Creator, bell_a), (opened, Side::Opener, bell_b)]
        {
            assert_eq!(
                (segment.ring_bytes(), segment.max_frame_bytes()),
                (ring_bytes, max_frame_bytes)
            );
            assert_eq!(ShmLink::new(segment, side, bell).max_frame_bytes(), max_frame_bytes);
        }
    }
}

/// A memory file with these contents, length and seals.
fn memory_file(contents: &[u8], bytes: u64, seals: SealFlags) -> OwnedFd {
    let file = memfd_create(c"test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, bytes).unwrap();
    if !contents.is_empty() {
        rustix::io::pwrite(&file, contents, 0).unwrap();
    }
    fcntl_add_seals(&file, seals).unwrap();
    file
}

/// The first bytes and the length of a real segment.
fn real_segment() -> (Vec<u8>, u64) {
    let segment = Segment::create(&small()).unwrap();
    let mut header = vec![0; 64];
    rustix::io::pread(&segment, &mut header[..], 0).unwrap();
    let bytes = rustix::fs::fstat(&segment).unwrap().st_size as u64;
    (header, bytes)
}

fn all_seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
}

fn reason_refused(file: OwnedFd) -> &'static str {
    match Segment::from_fd(file) {
        Err(ShmError::NotASegment(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn from_fd__takes_what_create_made() {
    let segment = Segment::create(&small()).unwrap();
    let opened = Segment::from_fd(segment.as_fd().try_clone_to_owned().unwrap()).unwrap();
    assert_eq!((opened.ring_bytes(), opened.max_frame_bytes()), (64 << 10, 2048));
    let (header, bytes) = real_segment();
    assert!(Segment::from_fd(memory_file(&header, bytes, all_seals())).is_ok());
}

#[test]
fn from_fd__refuses_what_is_no_memory_file() {
    let (reader, writer) = std::io::pipe().unwrap();
    let file = File::open(std::env::current_exe().unwrap()).unwrap();
    for fd in [OwnedFd::from(reader), writer.into(), File::open("/").unwrap().into(), file.into()] {
        assert_eq!(reason_refused(fd), "it is not a memory file");
    }
}

#[test]
fn from_fd__refuses_files_that_could_be_cut() {
    let (header, bytes) = real_segment();
    for missing in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL] {
        let file = memory_file(&header, bytes, all_seals() - missing);
        assert!(reason_refused(file).contains("sealed"), "{missing:?}");
    }
}

#[test]
fn from_fd__refuses_impossible_headers() {
    let (header, bytes) = real_segment();
    let with = |at: usize, new: &[u8]| {
        let mut header = header.clone();
        header[at..at + new.len()].copy_from_slice(new);
        memory_file(&header, bytes, all_seals())
    };
    assert!(reason_refused(with(0, b"x")).contains("magic"));
    assert!(reason_refused(with(12, &[0; 4])).contains("sizes"));
    assert!(reason_refused(with(16, &[0xff; 8])).contains("sizes"));
    assert!(reason_refused(with(16, &(128u64 << 10).to_le_bytes())).contains("size"));
    let other = Segment::from_fd(with(8, &[9]));
    assert!(matches!(other, Err(ShmError::Version { theirs: 9, .. })), "{other:?}");
}

#[test]
fn from_fd__refuses_wrong_lengths() {
    let (header, bytes) = real_segment();
    for wrong in [0, 8, 4096, bytes - 1, bytes + (4 << 20)] {
        let contents = &header[..header.len().min(wrong as usize)];
        reason_refused(memory_file(contents, wrong, all_seals()));
    }
}

#[test]
fn create__the_file_cannot_be_resized_or_opened_by_others() {
    let segment = Segment::create(&small()).unwrap();
    assert!(ftruncate(&segment, 0).is_err());
    assert!(ftruncate(&segment, 1 << 30).is_err());
    assert_eq!(rustix::fs::fstat(&segment).unwrap().st_mode & 0o777, 0o600);
}
