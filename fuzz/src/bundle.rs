//! The iterator over the frames of a datagram.

use petrel_transport::bundle;

/// Parses any bytes as a datagram; an accepted bundle must equal the bundle built from its frames.
pub fn check(datagram: &[u8]) {
    let Some(frames) = bundle::frames(datagram) else {
        assert!(datagram.is_empty() || datagram[0] == bundle::BUNDLE_MARK);
        return;
    };
    let frames: Vec<&[u8]> = frames.collect();
    assert!(!frames.is_empty() && frames.iter().all(|frame| !frame.is_empty()));
    if datagram[0] == bundle::BUNDLE_MARK {
        assert_eq!(rebuild(&frames), datagram);
    } else {
        assert_eq!(frames, [datagram]);
    }
}

fn rebuild(frames: &[&[u8]]) -> Vec<u8> {
    let records: usize = frames.iter().map(|frame| bundle::record_bytes(frame.len())).sum();
    let mut buffer = vec![0; bundle::MARK_BYTES + records];
    let begun = bundle::begin(&mut buffer);
    let used = frames.iter().fold(begun, |used, frame| {
        let (head, body) = frame.split_at(frame.len() / 2);
        bundle::append(&mut buffer, used, head, body)
    });
    assert_eq!(used, buffer.len());
    buffer
}
