//! One-sided accesses on a card.

use std::sync::Arc;

use super::{AccessError, Accessor, Card, Kind, Lending, PairAddress, Place, Rights};
use crate::words::WordMemory;

const BYTES: u64 = 1 << 20;

const ALL: Rights = Rights { read: true, write: true };

fn lend(card: &Arc<Card>, memory: &Arc<WordMemory>, rights: Rights) -> (Accessor, Lending) {
    let (near, lent, _) = lend_at(card, memory, rights);
    (near, lent)
}

fn lend_at(
    card: &Arc<Card>,
    memory: &Arc<WordMemory>,
    rights: Rights,
) -> (Accessor, Lending, Place) {
    let mut near = Accessor::open(card, Kind::Reliable).unwrap();
    let words: fn(&WordMemory) -> &WordMemory = |memory| memory;
    let lent =
        Lending::open(card, Kind::Reliable, (Arc::clone(memory), words), rights, &near.address())
            .unwrap();
    let place = lent.lend().unwrap().unwrap();
    near.connect(&lent.address(), place).unwrap();
    (near, lent, place)
}

/// Tries everything that [`Accessor`] and [`Lending`] promise on the card of this name.
pub(in crate::verbs) fn all_on(card: &str) {
    let card = Card::open(card).unwrap();
    let memory = Arc::new(WordMemory::private(BYTES).unwrap());
    bytes_go_and_come(&card, &memory);
    versions_are_compared(&card, &memory);
    rights_are_the_cards(&card, &memory);
    a_stolen_key_opens_nothing(&card, &memory);
}

fn bytes_go_and_come(card: &Arc<Card>, memory: &Arc<WordMemory>) {
    let (mut near, _lent) = lend(card, memory, ALL);
    let sent: Vec<u8> = (0..700_003_u32).map(|at| (at ^ at >> 8) as u8).collect();
    near.write(5, &sent).unwrap();
    let mut seen = vec![0; sent.len()];
    memory.read(5, &mut seen);
    assert!(seen == sent, "a write of several chains is in the memory");
    seen.fill(0);
    near.read(5, &mut seen).unwrap();
    assert!(seen == sent, "a read of several chains has the bytes");

    let pieces: Vec<(u64, usize)> =
        (0..150).map(|piece| (5 + piece * 1_000, 40 + piece as usize)).collect();
    let pieces = [&[(5, 300_000), (9, 0)], &pieces[..]].concat();
    let expected: Vec<u8> =
        pieces.iter().flat_map(|&(at, len)| &sent[at as usize - 5..][..len]).copied().collect();
    let mut seen = vec![0; expected.len()];
    near.read_many(&pieces, &mut seen).unwrap();
    assert!(seen == expected, "pieces come in their order, those of more than a chain too");
}

fn versions_are_compared(card: &Arc<Card>, memory: &Arc<WordMemory>) {
    let (mut near, _lent) = lend(card, memory, ALL);
    memory.store(64, 8);
    memory.write(72, b"value");
    let mut value = [0; 5];
    assert_eq!(near.read_versioned(64, &mut value), Ok(Some(8)));
    assert_eq!(&value, b"value");
    memory.store(64, 9);
    assert_eq!(near.read_versioned(64, &mut value), Ok(None), "a writer is at work");
}

fn rights_are_the_cards(card: &Arc<Card>, memory: &Arc<WordMemory>) {
    let mut seen = [0; 8];
    let (mut near, _lent) = lend(card, memory, Rights { read: true, write: false });
    near.read(0, &mut seen).unwrap();
    memory.store(0, 7);
    assert_eq!(near.write(0, &[1; 8]), Err(AccessError::Refused));
    assert_eq!(memory.load(0), 7);
    assert_eq!(near.read(0, &mut seen), Err(AccessError::Refused), "a refusal is the end");

    let (mut near, _lent) = lend(card, memory, Rights { read: false, write: true });
    assert_eq!(near.read(0, &mut seen), Err(AccessError::Refused));

    for beyond in [BYTES - 7, BYTES, u64::MAX - 7] {
        let (mut near, _lent) = lend(card, memory, ALL);
        assert_eq!(near.read(beyond, &mut seen), Err(AccessError::Refused), "{beyond}");
    }

    let (mut near, lent) = lend(card, memory, ALL);
    near.read(0, &mut seen).unwrap();
    lent.take_back();
    assert_eq!(near.read(0, &mut seen), Err(AccessError::Refused));
    assert_eq!(lent.lend().unwrap(), None, "memory that was taken back is not lent again");
    assert_eq!(near.write(0, &[9; 8]), Err(AccessError::Refused), "a failure is the end");

    let (mut near, lent) = lend(card, memory, ALL);
    drop(lent);
    assert!(matches!(near.read(0, &mut seen), Err(AccessError::Lost(_))));
}

/// A peer with a connection of its own knows the key of another peer's memory.
fn a_stolen_key_opens_nothing(card: &Arc<Card>, memory: &Arc<WordMemory>) {
    let own = Arc::new(WordMemory::private(4_096).unwrap());
    let (_near, _lent, place) = lend_at(card, memory, ALL);
    let mut thief = Accessor::open(card, Kind::Reliable).unwrap();
    let words: fn(&WordMemory) -> &WordMemory = |memory| memory;
    let given = Lending::open(card, Kind::Reliable, (own, words), ALL, &thief.address()).unwrap();
    given.lend().unwrap().unwrap();
    thief.connect(&given.address(), place).unwrap();
    assert_eq!(thief.read(0, &mut [0; 8]), Err(AccessError::Refused));
}

#[test]
fn address__comes_back_from_its_bytes() {
    let mut bytes = [0; PairAddress::BYTES];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = at as u8 + 1;
    }
    (bytes[21], bytes[25], bytes[26]) = (0, 0, 5);
    let far = PairAddress::from_bytes(&bytes).unwrap();
    assert_eq!(far.to_bytes(), bytes);
    for (at, byte) in [(21, 1), (25, 1), (26, 0), (26, 6)] {
        let mut wrong = bytes;
        wrong[at] = byte;
        assert_eq!(PairAddress::from_bytes(&wrong), None, "byte {at} is {byte}");
    }
}
