//! The task that keeps a session to a server open.

use std::net::SocketAddr;
use std::time::Duration;

use petrel_proto::Status;

use super::reconnect::Reconnect;
use crate::control::{EndpointId, LinkId};
use crate::endpoint::description::DESCRIBE;
use crate::endpoint::{HEALTH_METHOD, ServiceDescription};
use crate::error::Error;
use crate::events;
use crate::local::{Destination, Handle, Session};
use crate::overload::BackoffConfig;
use crate::values::client::Target;
use crate::values::{CallbacksKey, SessionState};

/// How long a server with an open session may take to describe itself: far longer than a turn of an event loop.
const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(2);

/// The pause before UDP is tried again, doubled with each failure. An endpoint asks an unreached server again after 9 s.
const UDP_PAUSE: Duration = Duration::from_secs(10);
const UDP_PAUSE_MAX: Duration = Duration::from_secs(300);

/// The time between two reports of a server that cannot be reached.
const REPORT_NS: u64 = 60_000_000_000;

/// A change of the session to a server.
pub(super) enum SessionChange {
    /// The session is open, and the server has named these endpoints.
    Opened(Session, Vec<EndpointId>),
    /// The open session accepts no further calls, for this reason.
    Lost(String),
    /// No session could be opened, for this reason.
    Failed(String),
}

/// How a server is reached.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    /// By a link to its address, on which it may call these callbacks.
    To(Option<CallbacksKey>),
    /// By a link that it has opened: it is a client of this endpoint.
    Back(LinkId),
}

impl Way {
    fn destination(self, target: Target) -> Destination {
        match self {
            Self::To(callbacks) => Destination::To(target.address, target.asked(), callbacks),
            Self::Back(link) => Destination::BackOn(link),
        }
    }
}

/// Keeps a session to a server open, until the connection is closed, or the link that the server has opened is gone. Each change is reported before the next wait.
pub(super) async fn keep(
    handle: Handle,
    (target, way): (Target, Way),
    (backoff, wanted): (BackoffConfig, Option<String>),
    report: impl Fn(SessionChange),
) {
    let server = (target, way);
    let mut reconnect = Reconnect::new(backoff);
    let mut absence = Absence::default();
    loop {
        let why = match open(&handle, server, wanted.as_deref()).await {
            Ok((session, endpoints)) => {
                reconnect.opened(handle.now().as_ns());
                absence.ends(target.address);
                report(SessionChange::Opened(session.clone(), endpoints));
                let mut session = session;
                while let Some((other, endpoints)) =
                    datagrams_again(&handle, server, wanted.as_deref(), &session).await
                {
                    report(SessionChange::Lost("UDP gets through again".to_owned()));
                    report(SessionChange::Opened(other.clone(), endpoints));
                    session.leave();
                    session = other;
                }
                reconnect.lost(handle.now().as_ns());
                let why = why_lost(&session);
                report(SessionChange::Lost(why.clone()));
                why
            }
            Err(error) => {
                let why = error.message.clone();
                report(SessionChange::Failed(why.clone()));
                match way {
                    Way::To(_) => absence.goes_on(target.address, &why, handle.now().as_ns()),
                    Way::Back(_) if error.status == Status::NotFound => return,
                    Way::Back(_) => {}
                }
                why
            }
        };
        let pause_ns = reconnect.pause_ns(handle.random());
        events::reconnect(target.address, &why, pause_ns);
        handle.sleep(Duration::from_nanos(pause_ns)).await;
    }
}

/// An unreachable server: reported at the begin and the end of the absence, and every minute in between.
#[derive(Default)]
struct Absence {
    reported_ns: Option<u64>,
}

impl Absence {
    fn goes_on(&mut self, server: SocketAddr, why: &str, now_ns: u64) {
        let is_due = |reported_ns: u64| now_ns.saturating_sub(reported_ns) >= REPORT_NS;
        if self.reported_ns.is_none_or(is_due) {
            self.reported_ns = Some(now_ns);
            events::server_unreachable(server, why);
        }
    }

    fn ends(&mut self, server: SocketAddr) {
        if self.reported_ns.take().is_some() {
            events::server_reachable(server);
        }
    }
}

/// Waits until a session is unavailable, or returns a session in its place: a session over UDP instead of a stream that was chosen because
/// UDP did not get through.
async fn datagrams_again(
    handle: &Handle,
    server: (Target, Way),
    wanted: Option<&str>,
    session: &Session,
) -> Option<(Session, Vec<EndpointId>)> {
    let mut pause = UDP_PAUSE;
    // The client chooses the medium of its link.
    while session.is_fallback() && !matches!(server.1, Way::Back(_)) {
        if handle.timeout(pause, session.unavailable()).await.is_ok() {
            return None;
        }
        match open(handle, server, wanted).await {
            Ok((other, endpoints)) if !other.is_fallback() => return Some((other, endpoints)),
            Ok((other, _)) => other.close(),
            // A stream again, or none: the present session is as good.
            Err(_) => {}
        }
        pause = (2 * pause).min(UDP_PAUSE_MAX);
    }
    session.unavailable().await;
    None
}

/// Opens a session to a server of the wanted service. Returns the endpoints named by the server, if the client has asked.
async fn open(
    handle: &Handle,
    (target, way): (Target, Way),
    wanted: Option<&str>,
) -> Result<(Session, Vec<EndpointId>), Error> {
    let session = handle.open(way.destination(target)).await?;
    if target.endpoint != EndpointId::ANY && wanted.is_none() {
        return Ok((session, Vec::new()));
    }
    // The client may end meanwhile, and this future with it.
    let closing = CloseOnDrop(Some(session));
    let checked =
        describe(closing.session(), wanted.is_some()).await.and_then(|description| match wanted {
            Some(wanted) if description.name.as_deref() != Some(wanted) => {
                let name =
                    description.name.map_or("no name".to_owned(), |name| format!("{name:?}"));
                let text = format!("the service there has {name}, and {wanted:?} is wanted");
                Err(Error::not_sent(Status::FailedPrecondition, text))
            }
            _ => Ok(description.endpoints),
        });
    checked.map(|endpoints| (closing.keep(), endpoints))
}

/// A session, closed on drop unless kept.
struct CloseOnDrop(Option<Session>);

impl CloseOnDrop {
    fn session(&self) -> &Session {
        self.0.as_ref().expect("it is not kept yet")
    }

    fn keep(mut self) -> Session {
        self.0.take().expect("it is kept once")
    }
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let Some(session) = self.0.take() {
            session.close();
        }
    }
}

/// Asks a server for its description. A server of an older version has none. Unless the client needs the name, a server
/// whose event loop stands still counts as one without a description.
async fn describe(session: &Session, is_wanted: bool) -> Result<ServiceDescription, Error> {
    match session.call(HEALTH_METHOD, DESCRIBE).timeout(DESCRIBE_TIMEOUT).await {
        Ok(answer) => {
            let wrong = || Error::new(Status::Internal, "the server's description is malformed");
            ServiceDescription::from_bytes(&answer).ok_or_else(wrong)
        }
        Err(error) if error.status == Status::InvalidArgument => Ok(ServiceDescription::default()),
        Err(error) if error.status == Status::DeadlineExceeded && !is_wanted => {
            Ok(ServiceDescription::default())
        }
        Err(error) => Err(error),
    }
}

fn why_lost(session: &Session) -> String {
    match session.state() {
        SessionState::Ended(Some(reason)) => reason.message,
        SessionState::Draining => "the server is draining".to_owned(),
        _ => "the session has ended".to_owned(),
    }
}
