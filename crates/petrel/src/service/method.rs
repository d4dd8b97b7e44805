//! A method of a service, as a type.

use petrel_proto::{Execution, Status};

use super::codec::{Decode, Encode, Malformed, Read};
use crate::error::Error;
use crate::panics::in_call;
use crate::values::method_table::{MethodEntry, hash};

/// A method of a service. Made by the attribute [`service`](macro@crate::service).
pub trait Method: 'static {
    /// The codec of both messages.
    type Codec: Encode<Self::Request> + Decode<Self::Reply>;
    /// The type of requests.
    type Request: ?Sized;
    /// The type of replies.
    type Reply: 'static;
    /// The name, with that of the service: `greeter.Greeter/Hello`.
    const NAME: &'static str;
}

impl MethodEntry {
    /// Returns the entry of a method in the table of its service.
    pub const fn of<M: Method>(name: &'static str, id: Option<u16>, is_idempotent: bool) -> Self {
        let codec = <M::Codec as Encode<M::Request>>::NAME;
        Self { name, id, is_idempotent, streams: (false, false), codec, schema: schema::<M> }
    }
}

/// Returns the fingerprint of a method's messages. The table has the name of the request's codec; that of the reply's codec is here.
fn schema<M: Method>() -> u64 {
    let request = <M::Codec as Encode<M::Request>>::schema();
    let reply = <M::Codec as Encode<M::Reply>>::schema();
    let of_request = <M::Codec as Encode<M::Request>>::NAME;
    let of_reply = <M::Codec as Encode<M::Reply>>::NAME;
    match (request, reply) {
        (0, 0) if of_request == of_reply => 0,
        _ => hash([&*format!("{request:x} {reply:x} "), of_reply]),
    }
}

/// Reads a request for its handler.
#[inline]
pub(super) fn decode_request<M: Method>(bytes: &[u8]) -> Result<M::Request, Error>
where
    M::Request: Sized,
    M::Codec: Decode<M::Request>,
{
    <M::Codec as Decode<M::Request>>::decode(bytes).map_err(|why| malformed_request::<M>(&why))
}

/// Reads a request in place.
#[inline]
pub(super) fn read_request<'a, M: Method>(
    bytes: &'a [u8],
    kept: &'a mut <M::Codec as Read<M::Request>>::Kept,
) -> Result<&'a M::Request, Error>
where
    M::Codec: Read<M::Request>,
{
    <M::Codec as Read<M::Request>>::read(bytes, kept).map_err(|why| malformed_request::<M>(&why))
}

#[cold]
fn malformed_request<M: Method>(why: &Malformed) -> Error {
    let text = format!("{}: the request is malformed: {why}", M::NAME);
    Error::new(Status::InvalidArgument, text)
}

/// Reads a reply at the client.
#[inline(always)]
pub(super) fn decode_reply<M: Method>(bytes: &[u8]) -> Result<M::Reply, Error> {
    let decode = || <M::Codec as Decode<M::Reply>>::decode(bytes);
    let decoded = match <M::Codec as Encode<M::Reply>>::NEVER_PANICS {
        true => decode(),
        false => in_call("the decoder of the reply", Execution::Answered, decode)?,
    };
    decoded.map_err(|why| malformed_reply::<M>(&why))
}

#[cold]
fn malformed_reply<M: Method>(why: &Malformed) -> Error {
    let text = format!("{}: the reply is malformed: {why}", M::NAME);
    Error::of(Status::Internal, text, Execution::Answered)
}
