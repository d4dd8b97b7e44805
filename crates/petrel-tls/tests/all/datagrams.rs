//! Sealed datagrams (`docs/wire-protocol.md` §17.3).

use petrel_tls::{Suite, keys_from_secret};
use petrel_transport::seal::{DatagramKey, HEAD_BYTES, TAG_BYTES};

const HEAD: [u8; HEAD_BYTES] = *b"\x0e\x01\x02\x03\x09\0\0\0\0\0\0\0";

fn key(suite: Suite) -> Box<dyn DatagramKey> {
    keys_from_secret(suite, &vec![0x5a; suite.secret_bytes()]).unwrap()
}

fn sealed(key: &dyn DatagramKey, number: u64, head: &[u8; HEAD_BYTES], plain: &[u8]) -> Vec<u8> {
    let mut bytes = [plain, &[0; TAG_BYTES]].concat();
    key.seal(number, head, &mut bytes);
    bytes
}

#[test]
fn open__of_every_length() {
    for suite in Suite::ALL {
        let (sender, receiver) = (key(suite), key(suite));
        for length in (0..70).chain([1_400, 8_900, 17_000, 65_507]) {
            let plain: Vec<u8> = (0..length).map(|i| (i * 7) as u8).collect();
            let mut bytes = sealed(&*sender, 9, &HEAD, &plain);
            assert!(length < 16 || bytes[..length] != plain);
            assert!(receiver.open(9, &HEAD, &mut bytes));
            assert_eq!(bytes[..length], plain);
        }
    }
}

#[test]
fn open__of_a_flipped_bit_fails() {
    for suite in Suite::ALL {
        let key = key(suite);
        let whole = sealed(&*key, 9, &HEAD, b"a frame of 24 bytes here");
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!key.open(9, &HEAD, &mut bytes), "bit {bit}");
        }
        for bit in 0..HEAD_BYTES * 8 {
            let mut head = HEAD;
            head[bit / 8] ^= 1 << (bit % 8);
            assert!(!key.open(9, &head, &mut whole.clone()), "bit {bit} of the head");
        }
        for bit in 0..64 {
            assert!(!key.open(9 ^ 1 << bit, &HEAD, &mut whole.clone()), "bit {bit} of the number");
        }
        assert!(key.open(9, &HEAD, &mut whole.clone()));
    }
}

#[test]
fn open__of_a_cut_or_longer_datagram_fails() {
    for suite in Suite::ALL {
        let key = key(suite);
        let whole = sealed(&*key, 9, &HEAD, &[7; 40]);
        for length in 0..whole.len() {
            assert!(!key.open(9, &HEAD, &mut whole[..length].to_vec()), "{length}");
            assert!(!key.open(9, &HEAD, &mut whole[whole.len() - length..].to_vec()), "{length}");
        }
        assert!(!key.open(9, &HEAD, &mut [&whole[..], &[0]].concat()));
        assert!(!key.open(9, &HEAD, &mut [&[0], &whole[..]].concat()));
    }
}

#[test]
fn open__with_another_suite_or_secret_or_epoch_fails() {
    for suite in Suite::ALL {
        let key_of =
            |secret: u8| keys_from_secret(suite, &vec![secret; suite.secret_bytes()]).unwrap();
        let whole = sealed(&*key_of(1), 9, &HEAD, &[7; 40]);
        assert!(!key_of(2).open(9, &HEAD, &mut whole.clone()));
        assert!(!key_of(1).next().open(9, &HEAD, &mut whole.clone()));
        for other in Suite::ALL.into_iter().filter(|other| *other != suite) {
            assert!(!key(other).open(9, &HEAD, &mut sealed(&*key(suite), 9, &HEAD, &[7; 40])));
        }
    }
}

#[test]
fn seal__of_one_number_with_two_heads_gives_two_tags() {
    for suite in Suite::ALL {
        let key = key(suite);
        let mut other = HEAD;
        other[1] = 2;
        let (one, two) = (sealed(&*key, 9, &HEAD, &[7; 40]), sealed(&*key, 9, &other, &[7; 40]));
        assert_eq!(one[..40], two[..40], "the nonce is that of the number");
        assert_ne!(one[40..], two[40..]);
        assert!(!key.open(9, &other, &mut one.clone()) && !key.open(9, &HEAD, &mut two.clone()));
    }
}
