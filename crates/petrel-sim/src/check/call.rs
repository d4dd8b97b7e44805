//! The parameters of a call, and the answer that the checker expects.

use petrel::Status;
use petrel_proto::SessionId;

use super::pattern;
use crate::fabric::SimAddr;

/// The methods of a node. Every node serves all except the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// Answers with the request.
    Echo,
    /// Answers with bytes computed from the request, of another length.
    Transform,
    /// Like `Transform`, after a delay.
    Deferred,
    /// Like `Transform`, after a call to a third endpoint.
    Nested,
    /// Answers with an error.
    Fail,
    /// Drops the request without an answer, at once or later.
    Drop,
    /// Answers with more bytes than the client accepts.
    Huge,
    /// Echo for requests too short for a call number.
    TinyEcho,
    /// Answers a request too short for a call number with several packets.
    TinyGrow,
    /// Not registered.
    Unknown,
}

impl Method {
    pub(super) const SERVED: [Method; 9] = [
        Method::Echo,
        Method::Transform,
        Method::Deferred,
        Method::Nested,
        Method::Fail,
        Method::Drop,
        Method::Huge,
        Method::TinyEcho,
        Method::TinyGrow,
    ];

    pub(super) fn number(self) -> u16 {
        self as u16 + 1
    }

    pub(super) fn is_tiny(self) -> bool {
        matches!(self, Method::TinyEcho | Method::TinyGrow)
    }

    /// Returns the method of this number, if its requests are too short for a call number.
    pub(super) fn tiny(number: u16) -> Option<Self> {
        [Method::TinyEcho, Method::TinyGrow].into_iter().find(|method| method.number() == number)
    }

    /// Returns the content of the answer to a request without a call number.
    pub(super) fn content_of_tiny(self, byte: Option<u8>) -> Content {
        match self {
            Method::TinyEcho => Content::Tiny(byte),
            Method::TinyGrow => Content::Filled(answer_seed(byte.as_slice())),
            _ => Content::None,
        }
    }

    /// Returns true if a handler is registered for the method.
    pub(super) fn is_served(self) -> bool {
        self != Method::Unknown
    }
}

/// Bytes of the answer of [`Method::TinyGrow`].
pub(super) const GROWN_BYTES: u32 = 20_000;

#[derive(Clone, Copy, Debug)]
pub(super) struct Spec {
    pub(super) method: Method,
    pub(super) request_len: u32,
    /// Length of the answer if the call succeeds.
    pub(super) response_len: u32,
    /// Bytes of the caller's response buffer beyond `response_len`; negative for too few.
    pub(super) slack: i64,
    /// The delay of a deferred answer.
    pub(super) delay_ns: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) spec: Spec,
    /// The client: an endpoint in one incarnation.
    pub(super) client: u32,
    pub(super) client_at: SimAddr,
    pub(super) server: SimAddr,
    pub(super) session: SessionId,
    /// The size of the caller's response buffer.
    pub(super) room: u32,
    /// The call whose handler makes this call.
    pub(super) parent: Option<u32>,
    pub(super) issued_ns: u64,
    pub(super) ended_ns: Option<u64>,
    /// When its first packet left for the first time, by the clock read for this packet.
    pub(super) left_ns: Option<u64>,
    /// The caller's deadline, or an earlier inherited deadline.
    pub(super) deadline_ns: Option<u64>,
    /// Whether the call runs only after all earlier ones of its session.
    pub(super) is_ordered: bool,
    pub(super) is_cancelled: bool,
    /// The deadline as the handler saw it.
    pub(super) seen_ns: Option<u64>,
    pub(super) watch: Watch,
    /// Number of handler runs for the call.
    pub(super) executions: u32,
    /// The seed of the answer's bytes, once known from the server.
    pub(super) seed: Option<u64>,
    pub(super) end: End,
}

/// Whether a request's handler asked for a notification when its caller stops waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watch {
    No,
    /// The handler asked, at this endpoint.
    Waits(u32),
    Notified,
    Answered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Pending,
    /// The call was not accepted: the application got an error at once.
    Rejected,
    /// The client crashed first.
    Lost,
    Succeeded,
    Failed(Status, petrel::Execution),
}

/// The expected outcome of a server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// The request.
    Same,
    /// An answer of this number of bytes, computed from the request.
    Made(u32),
    /// An error; the text begins with these bytes, if known.
    Error(Status, Option<Vec<u8>>),
}

/// The content of a server's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// The request of this call.
    Request(u32),
    /// A request too short for a call number.
    Tiny(Option<u8>),
    /// Bytes that follow from a seed.
    Filled(u64),
    /// No message: an error, or no answer yet.
    None,
}

impl Call {
    /// Returns the content of the server's message, if the server has answered with a message.
    pub(super) fn content(&self, id: u32) -> Content {
        match self.spec.method {
            Method::Echo => Content::Request(id),
            _ => self.seed.map_or(Content::None, Content::Filled),
        }
    }

    /// Returns the outcome that the server's answer must have, whatever the faults.
    pub(super) fn expected(&self, id: u32) -> Expected {
        let Spec { method, response_len, .. } = self.spec;
        let answer = match method {
            Method::Echo | Method::TinyEcho => Expected::Same,
            Method::Transform | Method::Deferred | Method::Nested | Method::TinyGrow => {
                Expected::Made(response_len)
            }
            Method::Fail => return Expected::Error(fail_status(id), Some(self.fail_text(id))),
            Method::Drop => {
                let text = b"the handler dropped the request".to_vec();
                return Expected::Error(Status::Internal, Some(text));
            }
            Method::Huge => return Expected::Error(Status::ResourceExhausted, None),
            Method::Unknown => {
                let text = b"the server has no such method".to_vec();
                return Expected::Error(Status::Unimplemented, Some(text));
            }
        };
        if response_len > self.room {
            return Expected::Error(Status::ResourceExhausted, None);
        }
        answer
    }

    /// Returns the text of [`Method::Fail`]: letters, as many as the answer has bytes.
    pub(super) fn fail_text(&self, id: u32) -> Vec<u8> {
        let mut text = vec![0; self.spec.response_len as usize];
        pattern::fill(u64::from(id), &mut text);
        text.iter_mut().for_each(|byte| *byte = b'a' + *byte % 26);
        text
    }
}

/// Returns the status of [`Method::Fail`]: any except OK.
pub(super) fn fail_status(id: u32) -> Status {
    Status::from_code((1 + id % 16) as u8)
}

/// Returns the seed of an answer's bytes.
pub(super) fn answer_seed(request: &[u8]) -> u64 {
    pattern::hash(request)
}
