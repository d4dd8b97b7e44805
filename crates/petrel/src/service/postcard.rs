//! The codec of serde and postcard.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::codec::{Decode, Encode, Malformed, Read};
use super::reader;
use super::shape::Shape;

/// Types with serde's `Serialize` and `Deserialize`, in the format of postcard: small, fast, and without names. Both ends need
/// the same fields in the same order. A client whose types differ from its server's gets UNIMPLEMENTED, if the difference can be seen: types say
/// nothing about the fields of later variants, nor about the types behind a field that refuses numbers like 1 and empty text.
///
/// A message has values within values to a depth of 128, and a list of values without bytes, such as `Vec<()>`, is refused. A message with a list
/// or map of unknown length cannot be written: its sender panics.
#[derive(Clone, Copy, Debug)]
pub struct Postcard;

/// A message of a type that cannot be written: serde has maps and sequences of unknown length, which postcard lacks.
const UNSUPPORTED: &str = "the type of the message cannot be written by postcard";

impl<T: Serialize + DeserializeOwned> Encode<T> for Postcard {
    const NAME: &'static str = "postcard";

    fn schema() -> u64 {
        Shape::of::<T>().fingerprint()
    }

    fn len(message: &T) -> usize {
        postcard::experimental::serialized_size(message).expect(UNSUPPORTED)
    }

    fn encode(message: &T, out: &mut [u8]) {
        let len = out.len();
        let written = postcard::to_slice(message, out).expect(UNSUPPORTED).len();
        assert_eq!(written, len, "a message is as long as announced");
    }

    fn append(message: &T, out: &mut Vec<u8>) {
        *out = postcard::to_extend(message, std::mem::take(out)).expect(UNSUPPORTED);
    }
}

impl<T: Serialize + DeserializeOwned> Decode<T> for Postcard {
    fn decode(bytes: &[u8]) -> Result<T, Malformed> {
        reader::read(bytes)
    }
}

impl<T: Serialize + DeserializeOwned> Read<T> for Postcard {
    type Kept = Option<T>;

    fn read<'a>(bytes: &'a [u8], kept: &'a mut Option<T>) -> Result<&'a T, Malformed> {
        Ok(kept.insert(Self::decode(bytes)?))
    }
}
