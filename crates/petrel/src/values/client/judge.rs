//! Interpretation of responses, for services in which not every server can serve every request.

use std::fmt;
use std::sync::Arc;

use super::Target;
use crate::error::Error;

/// A client's interpretation of a response, for services whose own messages redirect to another server. The server's
/// endpoint is not involved: Petrel treats all of them as responses.
///
/// ```
/// use petrel::client::{ClientConfig, Judge, Verdict};
/// use std::net::SocketAddr;
///
/// // A service whose responses begin with a byte: 0 from the leader, 1 from a follower, which names the leader.
/// let mut config = ClientConfig::default();
/// config.judge = Some(Judge::new(|_method, answer| match answer {
///     [0, ..] => Verdict::Leads,
///     [1, leader @ ..] => {
///         let leader = std::str::from_utf8(leader).ok().and_then(|text| text.parse().ok());
///         Verdict::Redirect(leader.map(|address: SocketAddr| address.into()))
///     }
///     _ => Verdict::Accept,
/// }));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The caller gets the response.
    Accept,
    /// The caller gets the response, which only the leader sends: the client tries the leader first, until it fails or
    /// redirects.
    Leads,
    /// The server has not executed the request and names another: the server at this address, or without an address the
    /// next in turn. The attempt does not count.
    Redirect(Option<Target>),
    /// The attempt has failed with this error. The call is retried if the error allows.
    Fail(Error),
}

/// Interprets the responses to a client's calls: part of [`ClientConfig`](super::ClientConfig).
///
/// The judge runs on the thread of the client's endpoint, once per response.
#[derive(Clone)]
pub struct Judge(Arc<Judging>);

type Judging = dyn Fn(u16, &[u8]) -> Verdict + Send + Sync;

impl Judge {
    /// Creates a judge from a function of the method and the response.
    pub fn new(judge: impl Fn(u16, &[u8]) -> Verdict + Send + Sync + 'static) -> Self {
        Self(Arc::new(judge))
    }

    pub(crate) fn judge(&self, method: u16, answer: &[u8]) -> Verdict {
        (self.0)(method, answer)
    }
}

impl fmt::Debug for Judge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Judge")
    }
}
