use super::*;

fn put(points: &Points, key: u64, value: u64) -> Option<u64> {
    let writer = points.writer(key);
    let former = writer.replace(value);
    if former.is_none() {
        writer.insert(value);
    }
    former
}

/// A table with the fewest possible homes.
fn fewest_homes() -> Points {
    Points::for_keys(1)
}

#[test]
fn remove__releases_all_overflow_lines() {
    let points = fewest_homes();
    for key in 0..10_000 {
        assert_eq!(put(&points, key, !key), None);
    }
    // 256 homes have room for 768.
    assert!(points.overflow_lines() >= (10_000 - 768) / 3);
    for key in 0..10_000 {
        assert_eq!(points.writer(key).remove(), Some(!key));
    }
    assert_eq!(points.overflow_lines(), 0);
    assert!((0..10_000).all(|key| points.get(key).is_none()));
}

#[test]
fn place__covers_the_segments_without_gaps() {
    let mut expected = (0, 0);
    for number in 0..100_000 {
        assert_eq!(place(number), expected);
        expected.1 += 1;
        if expected.1 == FIRST_SEGMENT_LINES << expected.0 {
            expected = (expected.0 + 1, 0);
        }
    }
    assert!(place(u32::MAX - 1).0 < SEGMENTS);
}
