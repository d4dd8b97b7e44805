//! Details of errors with a type.

use std::borrow::Cow;

use super::codec::{Decode, Encode, Malformed};
use crate::error::Error;

/// A type of values that errors may carry for programs, beside their text.
///
/// ```
/// use petrel::service::{Detail, Raw};
/// use petrel::{Error, Status};
///
/// /// The quota that was used up.
/// struct Quota(String);
/// # use petrel::service::{Decode, Encode, Malformed};
/// # struct Names;
/// # impl Encode<Quota> for Names {
/// #     const NAME: &'static str = "names";
/// #     fn len(quota: &Quota) -> usize { quota.0.len() }
/// #     fn encode(quota: &Quota, out: &mut [u8]) { out.copy_from_slice(quota.0.as_bytes()); }
/// # }
/// # impl Decode<Quota> for Names {
/// #     fn decode(bytes: &[u8]) -> Result<Quota, Malformed> { Ok(Quota(str::from_utf8(bytes)?.to_owned())) }
/// # }
///
/// impl Detail for Quota {
///     type Codec = Names;
///
///     fn name() -> std::borrow::Cow<'static, str> {
///         "shop.Quota".into()
///     }
/// }
///
/// let error = Error::new(Status::ResourceExhausted, "too many orders");
/// let error = error.with_detail(&Quota("orders".to_owned()));
/// let quota = error.detail::<Quota>().expect("a detail")?;
/// assert_eq!(quota.0, "orders");
/// # Ok::<(), Malformed>(())
/// ```
///
/// With the cargo feature `prost`, messages of protobuf with the trait `prost::Name` are details, by their names.
pub trait Detail: Sized {
    /// The codec of the values.
    type Codec: Encode<Self> + Decode<Self>;

    /// Returns the name of the type, which both ends know.
    fn name() -> Cow<'static, str>;
}

impl Error {
    /// Returns the same error with a further detail, within the limits of [`with_detail_bytes`](Self::with_detail_bytes).
    #[must_use]
    pub fn with_detail<D: Detail>(self, detail: &D) -> Self {
        let mut value = Vec::new();
        <D::Codec as Encode<D>>::append(detail, &mut value);
        self.with_detail_bytes(&D::name(), &value)
    }

    /// Returns the first detail of a type, if the error has any.
    ///
    /// # Errors
    /// The detail does not decode.
    pub fn detail<D: Detail>(&self) -> Option<Result<D, Malformed>> {
        let found = self.details().find(|detail| detail.name == D::name())?;
        Some(<D::Codec as Decode<D>>::decode(found.value))
    }
}

#[cfg(feature = "prost")]
pub use grpc::{GrpcDetail, GrpcStatus};

#[cfg(feature = "prost")]
mod grpc {
    use std::borrow::Cow;

    use petrel_proto::Status;
    use prost::bytes::{Buf, BufMut};
    use prost::encoding::{DecodeContext, WireType, bytes, int32, message, skip_field, string};
    use prost::{DecodeError, Message, Name};

    use super::{Detail, Error};
    use crate::service::Prost;

    /// The begin of the names of protobuf's messages.
    const DOMAIN: &str = "type.googleapis.com";

    impl<T: Message + Name + Default> Detail for T {
        type Codec = Prost;

        fn name() -> Cow<'static, str> {
            format!("{DOMAIN}/{}", T::full_name()).into()
        }
    }

    /// An [`Error`] as a message of protobuf, `google.rpc.Status`: for gateways to gRPC and back.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct GrpcStatus {
        /// The code of the status.
        pub code: i32,
        /// The text for people.
        pub message: String,
        /// The details.
        pub details: Vec<GrpcDetail>,
    }

    /// A detail of a [`GrpcStatus`], a `google.protobuf.Any`.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct GrpcDetail {
        /// The name of the type: `type.googleapis.com/google.rpc.RetryInfo`.
        pub type_url: String,
        /// The value.
        pub value: Vec<u8>,
    }

    impl From<&Error> for GrpcStatus {
        fn from(error: &Error) -> Self {
            let details = error.details().map(|detail| GrpcDetail {
                type_url: detail.name.to_owned(),
                value: detail.value.to_owned(),
            });
            let (code, message) = (error.status.code().into(), error.message.clone());
            Self { code, message, details: details.collect() }
        }
    }

    /// Codes that gRPC does not have are UNKNOWN, and so is OK: an error is none.
    impl From<GrpcStatus> for Error {
        fn from(status: GrpcStatus) -> Self {
            let code = u8::try_from(status.code).map_or(Status::Unknown, Status::from_code);
            let code = if code == Status::Ok { Status::Unknown } else { code };
            let details = status.details.iter();
            details.fold(Error::new(code, status.message), |error, detail| {
                error.with_detail_bytes(&detail.type_url, &detail.value)
            })
        }
    }

    impl Message for GrpcStatus {
        fn encode_raw(&self, out: &mut impl BufMut) {
            if self.code != 0 {
                int32::encode(1, &self.code, out);
            }
            if !self.message.is_empty() {
                string::encode(2, &self.message, out);
            }
            message::encode_repeated(3, &self.details, out);
        }

        fn merge_field(
            &mut self,
            tag: u32,
            wire_type: WireType,
            bytes: &mut impl Buf,
            cx: DecodeContext,
        ) -> Result<(), DecodeError> {
            match tag {
                1 => int32::merge(wire_type, &mut self.code, bytes, cx),
                2 => string::merge(wire_type, &mut self.message, bytes, cx),
                3 => message::merge_repeated(wire_type, &mut self.details, bytes, cx),
                _ => skip_field(wire_type, tag, bytes, cx),
            }
        }

        fn encoded_len(&self) -> usize {
            let code = if self.code == 0 { 0 } else { int32::encoded_len(1, &self.code) };
            let text =
                if self.message.is_empty() { 0 } else { string::encoded_len(2, &self.message) };
            code + text + message::encoded_len_repeated(3, &self.details)
        }

        fn clear(&mut self) {
            *self = Self::default();
        }
    }

    impl Message for GrpcDetail {
        fn encode_raw(&self, out: &mut impl BufMut) {
            if !self.type_url.is_empty() {
                string::encode(1, &self.type_url, out);
            }
            if !self.value.is_empty() {
                bytes::encode(2, &self.value, out);
            }
        }

        fn merge_field(
            &mut self,
            tag: u32,
            wire_type: WireType,
            from: &mut impl Buf,
            cx: DecodeContext,
        ) -> Result<(), DecodeError> {
            match tag {
                1 => string::merge(wire_type, &mut self.type_url, from, cx),
                2 => bytes::merge(wire_type, &mut self.value, from, cx),
                _ => skip_field(wire_type, tag, from, cx),
            }
        }

        fn encoded_len(&self) -> usize {
            let url =
                if self.type_url.is_empty() { 0 } else { string::encoded_len(1, &self.type_url) };
            url + if self.value.is_empty() { 0 } else { bytes::encoded_len(2, &self.value) }
        }

        fn clear(&mut self) {
            *self = Self::default();
        }
    }

    impl Name for GrpcStatus {
        const NAME: &'static str = "Status";
        const PACKAGE: &'static str = "google.rpc";
    }
}
