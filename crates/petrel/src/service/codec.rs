//! Codecs: how messages become bytes.

use std::convert::Infallible;
use std::fmt;

/// The half of a codec that writes. A codec is a type with [`Encode`] and [`Decode`] for its messages.
///
/// ```
/// use petrel::service::{Decode, Encode, Malformed};
///
/// /// Numbers as text.
/// struct Decimal;
///
/// impl Encode<u64> for Decimal {
///     const NAME: &'static str = "decimal";
///
///     fn len(number: &u64) -> usize {
///         number.to_string().len()
///     }
///
///     fn encode(number: &u64, out: &mut [u8]) {
///         out.copy_from_slice(number.to_string().as_bytes());
///     }
/// }
///
/// impl Decode<u64> for Decimal {
///     fn decode(bytes: &[u8]) -> Result<u64, Malformed> {
///         str::from_utf8(bytes)?.parse().map_err(Malformed::new)
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{T}` is no message of the codec `{Self}`",
    note = "`Raw` has bytes and text alone: for other types derive serde's traits for `Postcard`, prost's for `Prost` or zerocopy's \
            for `Zerocopy`, implement the codec for the type, or name another codec: `#[petrel::service(codec = …)]`"
)]
pub trait Encode<T: ?Sized> {
    /// The name of the codec: both ends of a call have the same.
    const NAME: &'static str;

    /// Whether neither writing nor reading can panic: panics are then not looked for. Otherwise a panic ends the call with INTERNAL.
    const NEVER_PANICS: bool = false;

    /// Returns a fingerprint of the message type: both ends have the same. 0 if messages of different versions understand each
    /// other.
    fn schema() -> u64 {
        0
    }

    /// Returns the bytes of a message.
    fn len(message: &T) -> usize;

    /// Writes a message, of [`len`](Self::len) bytes. If it panics, the call ends with INTERNAL, and a stream, too.
    fn encode(message: &T, out: &mut [u8]);

    /// Appends a message to a vector.
    fn append(message: &T, out: &mut Vec<u8>) {
        let before = out.len();
        out.resize(before + Self::len(message), 0);
        Self::encode(message, &mut out[before..]);
    }
}

/// The half of a codec that reads messages of their own.
#[diagnostic::on_unimplemented(
    message = "the codec `{Self}` cannot read `{T}`",
    note = "for `Postcard` the type has serde's `Deserialize`, and for a codec of the application an implementation of `Decode`"
)]
pub trait Decode<T>: Encode<T> {
    /// Reads a message.
    ///
    /// # Errors
    /// The bytes are no such message; the text names the field if possible.
    fn decode(bytes: &[u8]) -> Result<T, Malformed>;
}

/// The half of a codec that reads messages in place: for requests that are references.
#[diagnostic::on_unimplemented(
    message = "the codec `{Self}` cannot read `{T}` in place",
    note = "take the request by value, or implement `Read` for the type"
)]
pub trait Read<T: ?Sized>: Encode<T> {
    /// A message that the handler keeps for its next requests, if bytes cannot be lent.
    type Kept: Default;

    /// Returns a message within `bytes`, or within `kept`.
    ///
    /// # Errors
    /// As [`Decode::decode`].
    fn read<'a>(bytes: &'a [u8], kept: &'a mut Self::Kept) -> Result<&'a T, Malformed>;
}

/// Bytes that are no message, with the reason for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed(String);

impl Malformed {
    /// Returns an error with this reason, such as the name of a field.
    pub fn new(why: impl fmt::Display) -> Self {
        Self(why.to_string())
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Malformed {}

impl From<std::str::Utf8Error> for Malformed {
    fn from(error: std::str::Utf8Error) -> Self {
        Self::new(error)
    }
}

impl From<Infallible> for Malformed {
    fn from(error: Infallible) -> Self {
        match error {}
    }
}

/// Bytes and text as they are: `Vec<u8>`, `[u8]`, `String` and `str`; and `()`, which has no bytes.
#[derive(Clone, Copy, Debug)]
pub struct Raw;

/// Implements [`Raw`] for a type that borrows as another, and is made of bytes.
macro_rules! raw {
    ($name:literal: $owned:ty, $borrowed:ty, $bytes:expr, $read:expr) => {
        impl Encode<$borrowed> for Raw {
            const NAME: &'static str = $name;
            const NEVER_PANICS: bool = true;

            #[inline]
            fn len(message: &$borrowed) -> usize {
                message.len()
            }

            #[inline]
            fn encode(message: &$borrowed, out: &mut [u8]) {
                out.copy_from_slice($bytes(message));
            }

            #[inline]
            fn append(message: &$borrowed, out: &mut Vec<u8>) {
                out.extend_from_slice($bytes(message));
            }
        }

        impl Read<$borrowed> for Raw {
            type Kept = ();

            #[inline]
            fn read<'a>(bytes: &'a [u8], (): &'a mut ()) -> Result<&'a $borrowed, Malformed> {
                Ok($read(bytes)?)
            }
        }

        impl Encode<$owned> for Raw {
            const NAME: &'static str = $name;
            const NEVER_PANICS: bool = true;

            #[inline]
            fn len(message: &$owned) -> usize {
                message.len()
            }

            #[inline]
            fn encode(message: &$owned, out: &mut [u8]) {
                <Self as Encode<$borrowed>>::encode(message, out);
            }

            #[inline]
            fn append(message: &$owned, out: &mut Vec<u8>) {
                <Self as Encode<$borrowed>>::append(message, out);
            }
        }

        impl Decode<$owned> for Raw {
            #[inline]
            fn decode(bytes: &[u8]) -> Result<$owned, Malformed> {
                Ok($read(bytes)?.to_owned())
            }
        }
    };
}

raw!("bytes": Vec<u8>, [u8], |bytes| bytes, Ok::<&[u8], Infallible>);
raw!("text": String, str, str::as_bytes, str::from_utf8);

impl Encode<()> for Raw {
    const NAME: &'static str = "bytes";

    #[inline]
    fn len((): &()) -> usize {
        0
    }

    #[inline]
    fn encode((): &(), _: &mut [u8]) {}
}

impl Decode<()> for Raw {
    #[inline]
    fn decode(bytes: &[u8]) -> Result<(), Malformed> {
        match bytes {
            [] => Ok(()),
            _ => Err(Malformed::new("no bytes expected")),
        }
    }
}
