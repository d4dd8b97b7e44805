//! The codec of protobuf, by prost.

use prost::Message;

use super::codec::{Decode, Encode, Malformed, Read};

/// Messages of protobuf, as prost makes them of `.proto` files, or of types with `#[derive(prost::Message)]`. Fields may be added and
/// removed by protobuf's rules: old and new versions understand each other.
#[derive(Clone, Copy, Debug)]
pub struct Prost;

impl<T: Message> Encode<T> for Prost {
    const NAME: &'static str = "prost";

    fn len(message: &T) -> usize {
        message.encoded_len()
    }

    fn encode(message: &T, mut out: &mut [u8]) {
        message.encode_raw(&mut out);
        assert!(out.is_empty(), "a message is as long as announced");
    }

    fn append(message: &T, out: &mut Vec<u8>) {
        message.encode_raw(out);
    }
}

impl<T: Message + Default> Decode<T> for Prost {
    fn decode(bytes: &[u8]) -> Result<T, Malformed> {
        T::decode(bytes).map_err(Malformed::new)
    }
}

/// The handler keeps the message: strings and lists keep their memory.
impl<T: Message + Default> Read<T> for Prost {
    type Kept = T;

    fn read<'a>(bytes: &'a [u8], kept: &'a mut T) -> Result<&'a T, Malformed> {
        kept.clear();
        kept.merge(bytes).map_err(Malformed::new)?;
        Ok(kept)
    }
}
