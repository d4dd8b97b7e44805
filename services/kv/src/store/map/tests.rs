//! The map's structure, which no query shows: pages and directories are split, joined and dropped.

use super::*;

impl Map {
    /// Checks the invariants between method calls.
    fn assert_sound(&self) {
        assert_eq!(self.fences.len(), self.directories.len());
        let mut keys = Vec::new();
        for (at, directory) in self.directories.iter().enumerate() {
            assert!(!directory.is_too_large());
            for (page_at, page) in directory.pages().iter().enumerate() {
                assert!(page.len() > 0 || (self.keys == 0 && self.pages() == 1));
                for entry in 0..page.len() {
                    let probe = Probe::new(page.key(entry));
                    assert_eq!(self.fences.find(&probe), at);
                    assert_eq!(directory.find(&probe), page_at);
                    assert_eq!(page.find(&probe), Some(entry));
                    keys.push(page.key(entry));
                }
            }
        }
        assert!(keys.is_sorted_by(|a, b| a < b));
        assert_eq!(keys.len() as u64, self.keys);
    }

    fn pages(&self) -> usize {
        self.directories.iter().map(|directory| directory.pages().len()).sum()
    }
}

/// Keys with a common prefix longer than the 16 bytes that fences compare first.
fn key(number: u32) -> Vec<u8> {
    format!("more than sixteen bytes/{number:06}").into_bytes()
}

/// The numbers below `end`, once, out of order.
fn scattered(end: u32) -> impl Iterator<Item = u32> {
    (0..end).map(move |number| (u64::from(number) * 2_654_435_761 % u64::from(end)) as u32)
}

#[test]
fn map__filled_in_order_has_full_pages() {
    let mut map = Map::default();
    for number in 0..64 * 300 {
        assert!(!map.put(&key(number), b"", 1));
    }
    map.assert_sound();
    assert_eq!((map.pages(), map.directories.len()), (300, 2));
}

#[test]
fn map__filled_without_order_has_half_full_pages_at_least() {
    let mut map = Map::default();
    for number in scattered(30_000) {
        assert!(!map.put(&key(number), b"value", 1));
    }
    map.assert_sound();
    assert!(map.directories.len() > 1);
    assert!(map.pages() < 30_000 / 32, "{} pages", map.pages());
}

#[test]
fn map__that_shrinks_joins_its_pages_and_directories() {
    let mut map = Map::default();
    for number in scattered(30_000) {
        map.put(&key(number), b"value", 1);
    }
    for number in scattered(30_000).filter(|number| number % 100 != 0) {
        assert!(map.remove(&key(number)));
        assert!(!map.remove(&key(number)));
    }
    map.assert_sound();
    assert!(map.pages() <= 300 / 12, "{} pages", map.pages());
    assert_eq!(map.directories.len(), 1);
    for number in (0..300).rev() {
        assert!(map.remove(&key(number * 100)));
        map.assert_sound();
    }
    assert_eq!((map.keys(), map.bytes(), map.pages()), (0, 0, 1));
}

#[test]
fn map__from_any_end_to_nothing_and_back() {
    for from_end in [false, true] {
        let mut map = Map::default();
        for _ in 0..2 {
            for number in 0..20_000 {
                map.put(&key(number), b"v", 1);
            }
            for number in 0..20_000 {
                let number = if from_end { 19_999 - number } else { number };
                assert!(map.remove(&key(number)));
                if number % 1000 == 0 {
                    map.assert_sound();
                }
            }
            assert_eq!((map.pages(), map.directories.len()), (1, 1));
        }
    }
}

#[test]
fn pages__of_long_records_are_split_by_bytes() {
    let mut map = Map::default();
    for number in scattered(1000) {
        map.put(&key(number), &[7; 1024], 1);
    }
    map.assert_sound();
    assert!((1000 / 16..1000 / 7).contains(&map.pages()), "{} pages", map.pages());
}

#[test]
fn image__shares_what_has_not_changed() {
    let mut map = Map::default();
    for number in 0..64 * 600 {
        map.put(&key(number), b"value", 1);
    }
    let image = map.clone();
    map.put(&key(0), b"other", 2);
    map.remove(b"not there");
    let same = |at: usize| Arc::ptr_eq(&map.directories[at], &image.directories[at]);
    assert_eq!([same(0), same(1), same(2)], [false, true, true]);
    let pages = |map: &Map| map.directories[0].pages().to_vec();
    let copied = pages(&map).iter().zip(pages(&image)).filter(|(a, b)| !Arc::ptr_eq(a, b)).count();
    assert_eq!(copied, 1);
    assert_eq!(image.get(&key(0)), Some((&b"value"[..], 1)));
}

#[test]
fn pages__sweep_replaced_values() {
    let mut map = Map::default();
    // All values together have more bytes than place numbers can address.
    for revision in 0..1_000 {
        map.put(&key(0), b"short", revision);
        map.put(&key(0), &[7; 1000], revision);
    }
    assert_eq!(map.get(&key(0)), Some((&[7; 1000][..], 999)));
}

#[test]
fn pages__keep_no_large_value_that_was_replaced_or_removed() {
    let mut map = Map::default();
    for revision in 1..=3 {
        for number in 0..40 {
            map.put(&key(number), &[7; 2000], revision);
        }
    }
    let kept = |map: &Map| -> usize {
        map.directories.iter().flat_map(|d| d.pages()).map(|page| page.large_values()).sum()
    };
    assert_eq!(kept(&map), 40);
    for number in 0..20 {
        map.put(&key(number), b"small", 4);
        map.remove(&key(number + 20));
    }
    assert_eq!(kept(&map), 0);
    map.assert_sound();
}
