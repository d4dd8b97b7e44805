use std::fmt::Debug;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn bounds<K: Clone + Debug>(
    key: impl Strategy<Value = K> + Clone,
) -> impl Strategy<Value = Bound<K>> {
    prop_oneof![
        Just(Bound::Unbounded),
        key.clone().prop_map(Bound::Included),
        key.prop_map(Bound::Excluded)
    ]
}

fn round_trips<M: Method>(response: &M::Response) {
    assert_eq!(
        M::decode_response(&M::encode_response(response)).as_ref(),
        Ok(response),
        "{}",
        M::NAME
    );
}

proptest! {
    #[test]
    fn requests__round_trip(
        (key, value, number) in any::<(u64, u64, u32)>(),
        (name, text) in (vec(any::<u8>(), 0..40), vec(any::<u8>(), 0..40)),
        from in bounds(any::<u64>()),
        start in bounds(vec(any::<u8>(), 0..40)),
    ) {
        prop_assert_eq!(GetWord::decode_request(&GetWord::encode_request(&key)), Ok(key));
        prop_assert_eq!(PutWord::decode_request(&PutWord::encode_request(&(key, value))), Ok((key, value)));
        prop_assert_eq!(SumWords::decode_request(&SumWords::encode_request(&(key, number))), Ok((key, number)));
        let range = ScanRange { from, limit: number };
        prop_assert_eq!(ScanWords::decode_request(&ScanWords::encode_request(&range)), Ok(range));
        let pair = (&name[..], &text[..]);
        let message = PutBytes::encode_request(&pair);
        prop_assert_eq!(PutBytes::decode_request(&message), Ok(pair));
        let range = ScanRange { from: start.as_ref().map(Vec::as_slice), limit: number };
        let message = ScanBytes::encode_request(&range);
        prop_assert_eq!(ScanBytes::decode_request(&message), Ok(range));
    }

    #[test]
    fn responses__round_trip(
        value in any::<Option<u64>>(),
        text in any::<Option<Vec<u8>>>(),
        (found, sum, flag) in any::<(u32, u64, bool)>(),
        words in vec(any::<(u64, u64)>(), 0..20),
        pairs in vec((vec(any::<u8>(), 0..20), vec(any::<u8>(), 0..20)), 0..20),
        counters in vec(("[a-z_]{1,20}", any::<u64>()), 0..20),
    ) {
        round_trips::<GetWord>(&value);
        round_trips::<GetBytes>(&text);
        round_trips::<SumWords>(&Sum { found, sum });
        round_trips::<PutBytes>(&flag);
        round_trips::<ScanWords>(&Page { pairs: words, is_cut: flag });
        round_trips::<ScanBytes>(&Page { pairs, is_cut: flag });
        round_trips::<Status>(&counters);
    }
}

#[test]
fn messages__are_those_of_the_specification() {
    assert_eq!(GetWord::encode_request(&0x0102), [0, 0, 0, 0, 0, 0, 1, 2]);
    assert_eq!(GetWord::encode_response(&Some(0x0102)), [2, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(GetWord::encode_response(&None), []);
    assert_eq!(SumWords::encode_request(&(1, 128)), [0, 0, 0, 0, 0, 0, 0, 1, 128, 0, 0, 0]);
    let range = ScanRange { from: Bound::Excluded(&b"ab"[..]), limit: 3 };
    assert_eq!(ScanBytes::encode_request(&range), [2, 3, 0, 0, 0, b'a', b'b']);
    assert_eq!(PutBytes::encode_request(&(b"ab", b"c")), [2, 0, b'a', b'b', b'c']);
    let page = Page { pairs: vec![(b"a".to_vec(), b"xy".to_vec())], is_cut: true };
    assert_eq!(
        ScanBytes::encode_response(&page),
        [1, 1, 0, 0, 0, 1, 0, 2, 0, 0, 0, b'a', b'x', b'y']
    );
}

#[test]
fn decode__says_what_was_expected() {
    let error = PutWord::decode_request(&[0; 15]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a malformed message: a key and a value, 8 bytes each expected, 15 bytes came"
    );
    assert!(PutWord::decode_request(&[0; 17]).is_err());
    // A count larger than the message must not allocate memory.
    assert!(ScanWords::decode_response(&[0, 255, 255, 255, 255, 1, 2, 3]).is_err());
    assert!(ScanWords::decode_request(&[3, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
}
