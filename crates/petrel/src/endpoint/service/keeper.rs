//! The task that keeps a session to a server open.

use std::time::Duration;

use super::reconnect::Reconnect;
use crate::client::Target;
use crate::endpoint::SessionState;
use crate::events;
use crate::local::{Handle, Session};
use crate::overload::BackoffConfig;

/// A change of the session to a server.
pub(super) enum SessionChange {
    /// The session is open.
    Opened(Session),
    /// The open session accepts no further calls, for this reason.
    Lost(String),
    /// No session could be opened, for this reason.
    Failed(String),
}

/// Keeps a session to a server open, until the connection is closed. Each change is reported before the next wait.
pub(super) async fn keep(
    handle: Handle,
    target: Target,
    backoff: BackoffConfig,
    report: impl Fn(SessionChange),
) {
    let mut reconnect = Reconnect::new(backoff);
    loop {
        let why = match handle.connect_to(target.address, target.endpoint).await {
            Ok(session) => {
                reconnect.opened(handle.now().as_ns());
                report(SessionChange::Opened(session.clone()));
                session.unavailable().await;
                reconnect.lost(handle.now().as_ns());
                let why = why_lost(&session);
                report(SessionChange::Lost(why.clone()));
                why
            }
            Err(error) => {
                let why = error.to_string();
                report(SessionChange::Failed(why.clone()));
                why
            }
        };
        let pause_ns = reconnect.pause_ns(handle.random());
        events::reconnect(target.address, &why, pause_ns);
        handle.sleep(Duration::from_nanos(pause_ns)).await;
    }
}

fn why_lost(session: &Session) -> String {
    match session.state() {
        SessionState::Ended(Some(reason)) => reason.message,
        SessionState::Draining => "the server is draining".to_owned(),
        _ => "the session has ended".to_owned(),
    }
}
