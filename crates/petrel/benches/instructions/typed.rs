//! The typed service of the row `typed`: the same bytes as `client`, by a codec that copies them.

use petrel::service::{Decode, Encode, Malformed, Read};
use petrel::{Context, Error};

use super::workload::SMALL_BYTES;

type Message = [u8; SMALL_BYTES];

/// Messages as they are: what a row costs beyond `client` is the layer.
pub(crate) struct Bytes;

impl Encode<Message> for Bytes {
    const NAME: &'static str = "bytes";
    const NEVER_PANICS: bool = true;

    #[inline]
    fn len(_: &Message) -> usize {
        SMALL_BYTES
    }

    #[inline]
    fn encode(message: &Message, out: &mut [u8]) {
        out.copy_from_slice(message);
    }

    #[inline]
    fn append(message: &Message, out: &mut Vec<u8>) {
        out.extend_from_slice(message);
    }
}

impl Decode<Message> for Bytes {
    #[inline]
    fn decode(bytes: &[u8]) -> Result<Message, Malformed> {
        bytes.try_into().map_err(Malformed::new)
    }
}

impl Read<Message> for Bytes {
    type Kept = ();

    #[inline]
    fn read<'a>(bytes: &'a [u8], (): &'a mut ()) -> Result<&'a Message, Malformed> {
        bytes.try_into().map_err(Malformed::new)
    }
}

#[petrel::service(codec = Bytes)]
pub(crate) trait Samples {
    #[dispatch]
    #[id(2)]
    fn echo(&self, cx: &mut Context<'_>, message: &Message) -> Result<Message, Error>;
}

pub(crate) struct Echo;

impl Samples for Echo {
    #[inline]
    fn echo(&self, _: &mut Context<'_>, message: &Message) -> Result<Message, Error> {
        Ok(*message)
    }
}
