//! The memory that an endpoint's sessions access by cards.

use std::collections::HashMap;

use petrel_proto::{SessionId, Status};
use petrel_transport::verbs::Lent;

use crate::region_memory::wire::Refusal;
use crate::sync::{Arc, Mutex, lock, thread};

/// Lendings of a session, and of an endpoint's sessions together: cards have some thousand connections.
const OF_A_SESSION_MAX: usize = 16;
const MAX: usize = 1_024;

const TOO_MANY: Refusal =
    Refusal::new(Status::ResourceExhausted, "the server lends no further memory to cards");
const ENDED: Refusal = Refusal::new(Status::Unavailable, "the session has ended");

/// The lendings of each session that has asked for one. They end with the session.
#[derive(Default)]
pub(super) struct Lendings {
    by_session: Mutex<BySession>,
}

#[derive(Default)]
struct BySession {
    sessions: HashMap<SessionId, Vec<Arc<Lent>>>,
    count: usize,
}

impl Lendings {
    /// Notes that a lending may follow for a session. Called on the endpoint's thread, and so before the session's end.
    pub(super) fn expect(&self, session: SessionId) {
        lock(&self.by_session).sessions.entry(session).or_default();
    }

    /// Keeps a lending until its session ends.
    pub(super) fn keep(&self, session: SessionId, lent: Arc<Lent>) -> Result<(), Refusal> {
        let mut by_session = lock(&self.by_session);
        let BySession { sessions, count } = &mut *by_session;
        let of_session = sessions.get_mut(&session).ok_or(ENDED)?;
        if of_session.len() == OF_A_SESSION_MAX || *count == MAX {
            return Err(TOO_MANY);
        }
        of_session.push(lent);
        *count += 1;
        Ok(())
    }

    /// Ends the lendings of a session.
    pub(super) fn end(&self, session: SessionId) {
        let ended = {
            let mut by_session = lock(&self.by_session);
            let ended = by_session.sessions.remove(&session).unwrap_or_default();
            assert!(by_session.count >= ended.len(), "each lending is counted");
            by_session.count -= ended.len();
            ended
        };
        if !ended.is_empty() {
            // The kernel takes milliseconds for large memory, and the endpoint has other sessions.
            let thread = thread::Builder::new().name("petrel-card-end".to_owned());
            // Without a thread the closure, and the lendings with it, are dropped here.
            let _ = thread.spawn(move || drop(ended));
        }
    }
}
