//! The message of a call, in one of several forms.

use petrel_transport::buf::{BufPool, PoolExhausted};

use crate::msgbuf::MsgBuf;
use crate::values::SharedMsg;

/// The message of a call: a [`MsgBuf`], sent without a copy; a [`SharedMsg`], shared with other calls; or bytes, copied
/// into a buffer of the endpoint.
pub trait IntoMessage: sealed::Sealed {
    /// Whether the sent buffer only refers to the message.
    #[doc(hidden)]
    const IS_SHARED: bool = false;

    #[doc(hidden)]
    fn into_message(self, pool: &BufPool) -> Result<MsgBuf, PoolExhausted>;

    /// Returns the message in a buffer to which nothing else refers.
    #[doc(hidden)]
    fn into_own_message(self, pool: &BufPool) -> Result<MsgBuf, PoolExhausted>
    where
        Self: Sized,
    {
        self.into_message(pool)
    }
}

impl IntoMessage for MsgBuf {
    #[inline(always)]
    fn into_message(self, _pool: &BufPool) -> Result<MsgBuf, PoolExhausted> {
        Ok(self)
    }
}

impl IntoMessage for &SharedMsg {
    const IS_SHARED: bool = true;

    fn into_message(self, pool: &BufPool) -> Result<MsgBuf, PoolExhausted> {
        self.to_send(pool)
    }

    fn into_own_message(self, pool: &BufPool) -> Result<MsgBuf, PoolExhausted> {
        MsgBuf::holding(pool, self)
    }
}

/// Bytes, which are copied.
macro_rules! copied {
    ($(for<$($generic:ident: $kind:ty)?> $bytes:ty),*) => {$(
        impl<$(const $generic: $kind)?> IntoMessage for $bytes {
            fn into_message(self, pool: &BufPool) -> Result<MsgBuf, PoolExhausted> {
                MsgBuf::holding(pool, self.as_ref())
            }
        }

        impl<$(const $generic: $kind)?> sealed::Sealed for $bytes {}
    )*};
}

copied!(for<> &[u8], for<> &Vec<u8>, for<> Vec<u8>, for<> &str, for<> String);
copied!(for<N: usize> &[u8; N], for<N: usize> [u8; N]);

mod sealed {
    use super::*;

    pub trait Sealed {}

    impl Sealed for MsgBuf {}
    impl Sealed for &SharedMsg {}
}
