use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::conformance::TestKey;
use crate::seal::{EPOCH_DATAGRAMS, HEAD_BYTES, Sender};

const SECRET: u64 = 7;

fn receiver(epochs: Epochs) -> Receiver {
    Receiver::new(Box::new(TestKey::new(SECRET)), epochs)
}

/// A sealed datagram whose contents tell its number.
fn sealed(epochs: Epochs, number: u64) -> Vec<u8> {
    let mut key: Box<dyn DatagramKey> = Box::new(TestKey::new(SECRET));
    for _ in 0..epochs.of(number) {
        key = key.next();
    }
    let mut datagram = vec![0; HEAD_BYTES + 9 + TAG_BYTES];
    let head = crate::seal::head::encode(5, number);
    datagram[..HEAD_BYTES].copy_from_slice(&head);
    datagram[HEAD_BYTES..][..9].copy_from_slice(&plain(number));
    key.seal(number, &head, &mut datagram[HEAD_BYTES..]);
    datagram
}

fn plain(number: u64) -> [u8; 9] {
    let mut plain = [0x10; 9];
    plain[1..].copy_from_slice(&number.to_le_bytes());
    plain
}

fn open(receiver: &mut Receiver, datagram: &[u8]) -> Result<Vec<u8>, Refusal> {
    let mut datagram = datagram.to_vec();
    receiver.open(SealedDatagram::parse(&mut datagram).unwrap()).map(<[u8]>::to_vec)
}

/// The state that must not change before a datagram was opened.
fn state(receiver: &Receiver) -> (u64, u64, [u64; WORDS]) {
    (receiver.epoch, receiver.window.end, receiver.window.accepted)
}

#[test]
fn open__takes_every_number_once() {
    let mut receiver = receiver(Epochs::STANDARD);
    for number in [0, 2, 1, 1_023, 3, 1_024, 5_000, 4_999, 3_977] {
        let datagram = sealed(Epochs::STANDARD, number);
        assert_eq!(open(&mut receiver, &datagram), Ok(plain(number).to_vec()), "{number}");
        assert_eq!(open(&mut receiver, &datagram), Err(Refusal::Replayed), "{number}");
    }
    // The window is of 1 024 numbers: 3 977 to 5 000.
    let low = sealed(Epochs::STANDARD, 3_976);
    assert_eq!(open(&mut receiver, &low), Err(Refusal::Replayed));
    assert_eq!(receiver.forgeries, 0);
}

#[test]
fn open__changes_nothing_by_datagrams_that_do_not_open() {
    let epochs = Epochs::of_bits(4);
    let mut receiver = receiver(epochs);
    for number in [0, 20, 37] {
        open(&mut receiver, &sealed(epochs, number)).unwrap();
    }
    let before = state(&receiver);
    let mut forgeries = 0;
    for number in [38, 47, 48, 63, 36, 20, 31] {
        let datagram = sealed(epochs, number);
        // All bits behind the number, and the bits of the path.
        for bit in (8..32).chain(96..datagram.len() * 8) {
            let mut forged = datagram.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            let refusal = if number == 20 { Refusal::Replayed } else { Refusal::Forged };
            assert_eq!(open(&mut receiver, &forged), Err(refusal), "bit {bit} of {number}");
            forgeries += u64::from(refusal == Refusal::Forged);
        }
        for cut in [1, 8] {
            let cut = open(&mut receiver, &datagram[..datagram.len() - cut]);
            assert!(cut.is_err(), "a cut datagram");
            forgeries += u64::from(cut == Err(Refusal::Forged));
        }
    }
    assert_eq!((state(&receiver), receiver.forgeries), (before, forgeries));
    assert_eq!(open(&mut receiver, &sealed(epochs, 48)), Ok(plain(48).to_vec()));
}

/// The number is authenticated, too: a datagram with another number does not open.
#[test]
fn open__of_another_number_is_forged() {
    let mut receiver = receiver(Epochs::of_bits(2));
    for bit in 0..64 {
        let mut datagram = sealed(Epochs::of_bits(2), 1);
        datagram[4 + bit / 8] ^= 1 << (bit % 8);
        assert!(open(&mut receiver, &datagram).is_err());
    }
    assert_eq!(receiver.forgeries, 3, "0, 3 and 5 have keys, and all other numbers none");
    assert_eq!(receiver.window.end, 0);
}

#[test]
fn open__of_the_neighbouring_epochs_alone() {
    let epochs = Epochs::of_bits(4);
    let mut receiver = receiver(epochs);
    assert_eq!(open(&mut receiver, &sealed(epochs, 32)), Err(Refusal::Replayed), "after the next");
    assert!(open(&mut receiver, &sealed(epochs, 31)).is_ok());
    assert!(open(&mut receiver, &sealed(epochs, 3)).is_ok(), "the epoch before");
    assert!(open(&mut receiver, &sealed(epochs, 40)).is_ok());
    assert_eq!(open(&mut receiver, &sealed(epochs, 4)), Err(Refusal::Replayed), "two before");
    assert!(open(&mut receiver, &sealed(epochs, 16)).is_ok());
    assert_eq!(receiver.forgeries, 0);
}

#[test]
fn open__refuses_numbers_that_no_datagram_has() {
    let mut receiver = receiver(Epochs::STANDARD);
    receiver.epoch = NUMBER_END / EPOCH_DATAGRAMS - 1;
    receiver.window.end = NUMBER_END - 1;
    for number in [NUMBER_END, NUMBER_END + 1, u64::MAX] {
        let mut datagram = sealed(Epochs::STANDARD, 0);
        datagram[4..12].copy_from_slice(&number.to_le_bytes());
        assert_eq!(open(&mut receiver, &datagram), Err(Refusal::Replayed));
    }
}

#[test]
fn is_ended__after_the_most_forgeries() {
    let key = TestKey::new(SECRET).with_forgeries_max(3);
    let mut receiver = Receiver::new(Box::new(key), Epochs::STANDARD);
    for number in 0..3 {
        assert!(!receiver.is_ended());
        let mut forged = sealed(Epochs::STANDARD, number);
        forged[12] ^= 1;
        assert_eq!(open(&mut receiver, &forged), Err(Refusal::Forged));
    }
    assert!(receiver.is_ended());
    assert_eq!(open(&mut receiver, &sealed(Epochs::STANDARD, 4)), Err(Refusal::Forged));
    assert_eq!((receiver.forgeries, receiver.window.end), (3, 0));
}

/// The rules of the specification, read literally.
#[derive(Default)]
struct Oracle {
    accepted: BTreeSet<u64>,
}

impl Oracle {
    fn accepts(&mut self, epochs: Epochs, number: u64) -> bool {
        let highest = self.accepted.last().copied();
        let epoch = epochs.of(number).abs_diff(epochs.of(highest.unwrap_or(0)));
        let is_remembered = highest.is_none_or(|highest| number + WINDOW_NUMBERS > highest);
        epoch <= 1 && is_remembered && self.accepted.insert(number)
    }
}

/// Steps from the highest number so far: mostly near, some far back, some beyond an epoch.
fn steps() -> impl Strategy<Value = Vec<(i64, bool)>> {
    let step = prop_oneof![
        6 => 1..3i64,
        4 => -20..20i64,
        2 => -1_100..1_100i64,
        1 => Just(-1_024i64),
        1 => Just(-1_023i64),
        1 => 1_000..5_000i64,
    ];
    vec((step, prop::bool::weighted(0.1)), 1..if cfg!(miri) { 20 } else { 400 })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }))]

    #[test]
    fn open__agrees_with_the_oracle(steps in steps(), bits in 3..14u32) {
        let epochs = Epochs::of_bits(bits);
        let (mut receiver, mut oracle) = (receiver(epochs), Oracle::default());
        for (step, is_forged) in steps {
            let highest = receiver.window.end.saturating_sub(1);
            let Some(number) = highest.checked_add_signed(step) else { continue };
            let mut datagram = sealed(epochs, number);
            if is_forged {
                *datagram.last_mut().unwrap() ^= 0x80;
                let before = state(&receiver);
                prop_assert!(open(&mut receiver, &datagram).is_err());
                prop_assert_eq!(state(&receiver), before);
                continue;
            }
            let expected = match oracle.accepts(epochs, number) {
                true => Ok(plain(number).to_vec()),
                false => Err(Refusal::Replayed),
            };
            prop_assert_eq!(open(&mut receiver, &datagram), expected, "{}", number);
        }
    }

    /// Over many epochs, with losses and exchanges of neighbours.
    #[test]
    fn open__follows_a_sender(bits in 1..6u32, fates in vec(0..8u8, 1..500)) {
        let epochs = Epochs::of_bits(bits);
        let mut sender = Sender::new(5, Box::new(TestKey::new(SECRET)), epochs);
        let mut receiver = receiver(epochs);
        let (mut held, mut lost) = (None, 0);
        for (number, fate) in (0..).zip(fates) {
            let mut datagram = vec![0x10; HEAD_BYTES + 9 + TAG_BYTES];
            datagram[HEAD_BYTES..][..9].copy_from_slice(&plain(number));
            sender.seal(&mut datagram);
            prop_assert_eq!(&datagram, &sealed(epochs, number));
            match fate {
                0 | 1 if lost + 1 < 1 << bits => {
                    lost += 1;
                    held = held.or((fate == 1).then_some((number, datagram)));
                }
                _ => {
                    lost = 0;
                    prop_assert_eq!(open(&mut receiver, &datagram), Ok(plain(number).to_vec()));
                    let Some((number, datagram)) = held.take() else { continue };
                    let late = open(&mut receiver, &datagram);
                    let has_key = epochs.of(number) + 1 >= receiver.epoch;
                    let expected =
                        if has_key { Ok(plain(number).to_vec()) } else { Err(Refusal::Replayed) };
                    prop_assert_eq!(late, expected);
                }
            }
        }
        prop_assert_eq!(receiver.forgeries, 0);
    }
}
