//! What a call asks for, and what its answer must be.

use petrel::Status;
use petrel_proto::SessionId;

use super::pattern;
use crate::fabric::SimAddr;

/// The methods that every node serves, but the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// Answers with the request.
    Echo,
    /// Answers with bytes that follow from the request, of another length.
    Transform,
    /// The same, after a while.
    Deferred,
    /// The same, after a call to a third endpoint.
    Nested,
    /// Answers with an error.
    Fail,
    /// Drops the request without an answer, at once or later.
    Drop,
    /// Answers with more than the client accepts.
    Huge,
    /// Echo for requests without room for a number.
    TinyEcho,
    /// Answers such a request with several packets.
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

    /// The method of this number, if it is one for requests without room for a number.
    pub(super) fn tiny(number: u16) -> Option<Self> {
        [Method::TinyEcho, Method::TinyGrow].into_iter().find(|method| method.number() == number)
    }

    /// What the server answers to such a request.
    pub(super) fn content_of_tiny(self, byte: Option<u8>) -> Content {
        match self {
            Method::TinyEcho => Content::Tiny(byte),
            Method::TinyGrow => Content::Filled(answer_seed(byte.as_slice())),
            _ => Content::None,
        }
    }

    /// Whether a handler runs for it.
    pub(super) fn is_served(self) -> bool {
        self != Method::Unknown
    }
}

/// Bytes of the answer of [`Method::TinyGrow`].
pub(super) const GROWN_BYTES: u32 = 20_000;

/// What a call asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spec {
    pub(super) method: Method,
    pub(super) request_len: u32,
    /// Length of the answer if it succeeds.
    pub(super) response_len: u32,
    /// Bytes that the caller's buffer should have beyond that; negative for too few.
    pub(super) slack: i64,
    /// How long a deferred answer takes.
    pub(super) delay_ns: u64,
}

/// Everything known of one call.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) spec: Spec,
    /// The client: which endpoint in which incarnation.
    pub(super) client: u32,
    pub(super) client_at: SimAddr,
    pub(super) server: SimAddr,
    pub(super) session: SessionId,
    /// What the caller's buffer holds.
    pub(super) room: u32,
    /// The call whose handler makes this one.
    pub(super) parent: Option<u32>,
    pub(super) issued_ns: u64,
    /// When it ended.
    pub(super) ended_ns: Option<u64>,
    /// When its first packet left for the first time, by the clock that was read for it.
    pub(super) left_ns: Option<u64>,
    /// When it has to end: the caller's deadline, or an earlier one that it inherits.
    pub(super) deadline_ns: Option<u64>,
    /// Whether its caller has cancelled it.
    pub(super) is_cancelled: bool,
    /// Until when its handler thought that it has time.
    pub(super) seen_ns: Option<u64>,
    pub(super) watch: Watch,
    /// How often a handler ran for it.
    pub(super) executions: u32,
    /// What the answer follows from, once the server has worked it out.
    pub(super) seed: Option<u64>,
    pub(super) end: End,
}

/// Whether a request's handler wants to know when nobody waits for its answer any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watch {
    No,
    /// It does, at this endpoint.
    Waits(u32),
    Told,
    Answered,
}

/// How a call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Pending,
    /// Not taken: the application got an error at once.
    Rejected,
    /// The client died first.
    Lost,
    Succeeded,
    Failed(Status, petrel::Execution),
}

/// What a server's answer must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// The request.
    Same,
    /// So many bytes that follow from the request.
    Made(u32),
    /// An error; the text begins so, if it is known.
    Error(Status, Option<Vec<u8>>),
}

/// What a server's message consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// The request of this call.
    Request(u32),
    /// A request without room for a number.
    Tiny(Option<u8>),
    /// What follows from a seed.
    Filled(u64),
    /// No message: an error, or nothing yet.
    None,
}

impl Call {
    /// What the server's message consists of, if it has answered with one.
    pub(super) fn content(&self, id: u32) -> Content {
        match self.spec.method {
            Method::Echo => Content::Request(id),
            _ => self.seed.map_or(Content::None, Content::Filled),
        }
    }

    /// What must come when the server answers, whatever the faults.
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

    /// The text of [`Method::Fail`]: letters, as many as the answer has bytes.
    pub(super) fn fail_text(&self, id: u32) -> Vec<u8> {
        let mut text = vec![0; self.spec.response_len as usize];
        pattern::fill(u64::from(id), &mut text);
        text.iter_mut().for_each(|byte| *byte = b'a' + *byte % 26);
        text
    }
}

/// The status of [`Method::Fail`]: any but OK.
pub(super) fn fail_status(id: u32) -> Status {
    Status::from_code((1 + id % 16) as u8)
}

/// The seed of an answer's bytes.
pub(super) fn answer_seed(request: &[u8]) -> u64 {
    pattern::hash(request)
}
