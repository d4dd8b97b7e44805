//! The codec of types that are their own bytes.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::codec::{Decode, Encode, Malformed, Read};

/// Types whose memory is the message, with zerocopy's traits. A request that is a reference is read where it lies in the receive buffer:
/// the type has no alignment (`zerocopy::little_endian` has integers without). Types of the same size count as the same: a changed field needs a
/// method of another name.
#[derive(Clone, Copy, Debug)]
pub struct Zerocopy;

impl<T: IntoBytes + Immutable> Encode<T> for Zerocopy {
    const NAME: &'static str = "zerocopy";
    const NEVER_PANICS: bool = true;

    fn schema() -> u64 {
        size_of::<T>() as u64
    }

    #[inline]
    fn len(_: &T) -> usize {
        size_of::<T>()
    }

    #[inline]
    fn encode(message: &T, out: &mut [u8]) {
        out.copy_from_slice(message.as_bytes());
    }

    #[inline]
    fn append(message: &T, out: &mut Vec<u8>) {
        out.extend_from_slice(message.as_bytes());
    }
}

impl<T: IntoBytes + FromBytes + Immutable> Decode<T> for Zerocopy {
    #[inline]
    fn decode(bytes: &[u8]) -> Result<T, Malformed> {
        T::read_from_bytes(bytes).map_err(|_| wrong_length::<T>(bytes))
    }
}

impl<T: IntoBytes + FromBytes + Immutable + KnownLayout + Unaligned> Read<T> for Zerocopy {
    type Kept = ();

    #[inline]
    fn read<'a>(bytes: &'a [u8], (): &'a mut ()) -> Result<&'a T, Malformed> {
        T::ref_from_bytes(bytes).map_err(|_| wrong_length::<T>(bytes))
    }
}

#[cold]
fn wrong_length<T>(bytes: &[u8]) -> Malformed {
    Malformed::new(format_args!("{} bytes expected, not {}", size_of::<T>(), bytes.len()))
}
