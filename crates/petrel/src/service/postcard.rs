//! The codec of serde and postcard.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::codec::{Decode, Encode, Malformed, Read};
use super::shape::Shape;

/// Types with serde's `Serialize` and `Deserialize`, in the format of postcard: small, fast, and without names. Both ends need
/// the same fields in the same order: a client whose types differ from its server's gets UNIMPLEMENTED.
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
        match postcard::take_from_bytes(bytes) {
            Ok((message, [])) => Ok(message),
            Ok(_) => Err(Malformed::new("bytes follow the last field")),
            Err(_) => Err(why::<T>(bytes)),
        }
    }
}

impl<T: Serialize + DeserializeOwned> Read<T> for Postcard {
    type Kept = Option<T>;

    fn read<'a>(bytes: &'a [u8], kept: &'a mut Option<T>) -> Result<&'a T, Malformed> {
        Ok(kept.insert(Self::decode(bytes)?))
    }
}

/// Returns the field that does not decode: the message is read once more, with a note of the present field.
#[cold]
fn why<T: DeserializeOwned>(bytes: &[u8]) -> Malformed {
    let reader = &mut postcard::Deserializer::from_bytes(bytes);
    match serde_path_to_error::deserialize::<_, T>(reader) {
        Err(error) => {
            let place = Shape::of::<T>().place(error.path());
            Malformed::new(format_args!("{place}: {}", error.inner()))
        }
        Ok(_) => Malformed::new("a type that reads differently each time"),
    }
}
