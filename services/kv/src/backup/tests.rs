//! Files are read as they were written, or not at all.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::*;
use crate::api::{Pair, PairsBuffer};

/// A key, with its revision and value.
type Entry = (Vec<u8>, (u64, Vec<u8>));

type Written = Vec<Entry>;

/// Writes a file, with blocks of this many pairs.
fn file(pairs: &Written, block_pairs: usize) -> Vec<u8> {
    let bytes = pairs.iter().map(|(key, (_, value))| key.len() + value.len()).sum::<usize>();
    let head = Head { revision: 1_000, keys: pairs.len() as u64, bytes: bytes as u64 };
    let mut writer = Writer::new(Vec::new(), head).unwrap();
    for block in pairs.chunks(block_pairs) {
        writer.add(&buffer(block).pairs()).unwrap();
    }
    writer.finish().unwrap()
}

fn buffer(pairs: &[Entry]) -> PairsBuffer {
    let mut buffer = PairsBuffer::default();
    for (key, (revision, value)) in pairs {
        buffer.push(&Pair { key, revision: *revision, value });
    }
    buffer
}

fn read(file: &[u8]) -> Result<Written, BackupError> {
    let (mut reader, mut found) = (Reader::new(file)?, Vec::new());
    while let Some(pairs) = reader.next_block()? {
        let owned = |pair: Pair<'_>| (pair.key.to_vec(), (pair.revision, pair.value.to_vec()));
        found.extend(pairs.iter().map(owned));
    }
    Ok(found)
}

fn some_pairs() -> impl Strategy<Value = Written> {
    let (key, value) = (vec(any::<u8>(), 1..9), vec(any::<u8>(), 0..20));
    btree_map(key, (1..=1_000u64, value), 0..20).prop_map(|map| map.into_iter().collect())
}

proptest! {
    #[test]
    fn file__is_read_as_it_was_written(pairs in some_pairs(), block_pairs in 1..8usize) {
        prop_assert_eq!(read(&file(&pairs, block_pairs)).unwrap(), pairs);
    }

    #[test]
    fn file__with_any_change_is_refused(
        pairs in some_pairs(), block_pairs in 1..8usize, at: prop::sample::Index, change in 1..=255u8,
    ) {
        let mut file = file(&pairs, block_pairs);
        let at = at.index(file.len());
        file[at] ^= change;
        prop_assert!(read(&file).is_err());
    }

    #[test]
    fn file__cut_anywhere_or_longer_is_refused(
        pairs in some_pairs(), block_pairs in 1..8usize, at: prop::sample::Index, more: u8,
    ) {
        let mut file = file(&pairs, block_pairs);
        prop_assert!(read(&file[..at.index(file.len())]).is_err());
        file.push(more);
        prop_assert!(read(&file).is_err());
    }

    #[test]
    fn any_bytes_are_no_file(bytes in vec(any::<u8>(), 0..200), has_begin: bool) {
        let begin = if has_begin { &b"petrelkv\x01\x00"[..] } else { &[] };
        fuzzing::check(&[begin, &bytes].concat());
    }
}

#[test]
fn file__blocks_that_are_missing_repeated_or_exchanged_are_refused() {
    let pairs: Written = (0..9u8).map(|key| (vec![b'a' + key], (1, vec![key]))).collect();
    let whole = file(&pairs, 3);
    let head = 10 + 8 + 25;
    let block = 8 + 1 + 4 + 3 * (2 + 1 + 8 + 4 + 1);
    let blocks: Vec<&[u8]> = whole[head..head + 3 * block].chunks(block).collect();
    let (begin, end) = (&whole[..head], &whole[head + 3 * block..]);
    let [a, b, c] = blocks[..] else { panic!("three blocks") };
    assert_eq!(read(&[begin, a, b, c, end].concat()).unwrap(), pairs);
    for other in [&[a, b][..], &[a, c], &[b, c], &[a, a, b, c], &[a, c, b], &[]] {
        let other = [&[begin], other, &[end]].concat().concat();
        assert!(matches!(read(&other), Err(BackupError::Damaged { .. })), "{other:?}");
    }
}

#[test]
fn file__each_defect_has_its_error() {
    let whole = file(&vec![(b"key".to_vec(), (7, b"value".to_vec()))], 1);
    assert!(matches!(read(b""), Err(BackupError::Foreign)));
    assert!(matches!(read(b"{\"key\":\"a\"}\n{}"), Err(BackupError::Foreign)));
    assert!(matches!(read(&whole[..whole.len() - 1]), Err(BackupError::Damaged { keys: 1, .. })));
    assert!(matches!(read(&whole[..whole.len() - 17]), Err(BackupError::Cut(1, 1))));
    let mut later = whole.clone();
    later[8] = 2;
    assert!(matches!(read(&later), Err(BackupError::Version(2))));
    let text = read(&later).unwrap_err().to_string();
    assert_eq!(text, "it has format 2; this version reads format 1: use the version that wrote it");
}

/// A revision from after the save.
#[test]
fn file__impossible_revisions_are_refused() {
    for revision in [0, 1_001] {
        let pairs = vec![(b"key".to_vec(), (revision, Vec::new()))];
        assert!(matches!(read(&file(&pairs, 1)), Err(BackupError::Damaged { keys: 0, .. })));
    }
}

/// The file of format 1, as the first version with this command wrote it. Later versions read it.
#[test]
fn file__of_format_1_is_read() {
    let kept = include_bytes!("../../tests/files/save-1.petrelkv");
    let expected: Written = vec![
        (b"\x00\xff".to_vec(), (12, b"bytes".to_vec())),
        (b"colour".to_vec(), (5, b"grey".to_vec())),
        (b"empty".to_vec(), (9, Vec::new())),
        (b"long".to_vec(), (900, vec![b'x'; 300])),
    ];
    assert_eq!(read(kept).unwrap(), expected);
    assert_eq!(Reader::new(&kept[..]).unwrap().head().revision, 1_000);
    assert_eq!(file(&expected, 2), kept, "this version writes another file");
}

#[test]
fn writer__counts_its_pairs() {
    let head = Head { revision: 9, keys: 2, bytes: 2 };
    let mut writer = Writer::new(Vec::new(), head).unwrap();
    let pair = vec![(b"k".to_vec(), (1, b"v".to_vec()))];
    writer.add(&buffer(&pair).pairs()).unwrap();
    assert!(writer.add(&buffer(&pair).pairs()).is_err(), "the key was there already");
    assert!(matches!(writer.finish(), Err(BackupError::Cut(1, 2))));
}
