//! What answers mean to a client, where not every server can serve every request.

use std::fmt;
use std::sync::Arc;

use super::config::Target;
use crate::error::Error;

/// What a client makes of an answer: for services that say in their own messages that another server has to be asked. The
/// server's endpoint knows nothing of it: to Petrel each of these is an answer.
///
/// ```
/// use petrel::client::{ClientConfig, Judge, Verdict};
/// use std::net::SocketAddr;
///
/// // A service whose answers begin with a byte: 0 from the server that leads, 1 from one that follows, which names the leader.
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
    /// The caller gets it.
    Accept,
    /// The caller gets it, and only the server that leads answers so: the client asks that server first, until it fails or says
    /// that it does not lead.
    Leads,
    /// The server has not executed the request, and another has to be asked: the server at this address, or if none is given
    /// the next in turn. Such an attempt counts as none.
    Redirect(Option<Target>),
    /// The attempt has failed so, and the call is tried again if such a failure allows that.
    Fail(Error),
}

/// Judges the answers to a client's calls: part of [`ClientConfig`](super::ClientConfig).
///
/// The judge runs on the thread of the client's endpoint, for each answer.
#[derive(Clone)]
pub struct Judge(Arc<Judging>);

type Judging = dyn Fn(u16, &[u8]) -> Verdict + Send + Sync;

impl Judge {
    /// By the method and the answer.
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
