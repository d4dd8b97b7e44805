//! Errors of calls, and of setting up a nexus, an endpoint or a server.

mod details;

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;

use petrel_proto::{CallFailure, Execution, OpenError, Status};
use petrel_transport::LinkError;
use petrel_transport::buf::PoolExhausted;
use petrel_transport::host::HostError;
use petrel_transport::shm::ShmError;
use petrel_transport::udp::UdpError;

use crate::control::Reason;

pub use details::{ErrorDetail, check_details};

/// The failure of a call, of opening a session, of allocating a buffer, or of waiting for a response in time.
///
/// It has three fields: `status`, the gRPC status code; `message`, for people; `execution`, which says whether the
/// server may have executed the request. Behind the message a server may send [details](Self::details) for programs. Every cause of a failed call converts to `Error`. In a handler that makes
/// calls, `?` thus passes a failure on to the caller.
///
/// ```
/// use petrel::{Error, Execution, Status};
///
/// fn parse(text: &str) -> Result<u32, Error> {
///     text.parse().map_err(|_| Error::new(Status::InvalidArgument, "a number expected"))
/// }
/// let error = parse("seven").expect_err("no number");
/// assert_eq!((error.status, error.execution), (Status::InvalidArgument, Execution::Answered));
/// assert_eq!(error.to_string(), "INVALID_ARGUMENT: a number expected (the server answered)");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<CallFailure>);

impl Error {
    /// Returns an error for a handler to answer with.
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Self::of(status, message, Execution::Answered)
    }

    pub(crate) fn of(status: Status, message: impl Into<String>, execution: Execution) -> Self {
        Self(Box::new(CallFailure::new(status, message, execution)))
    }

    /// The error of a call of which nothing was sent.
    #[cold]
    pub(crate) fn not_sent(status: Status, message: impl Into<String>) -> Self {
        Self::of(status, message, Execution::NotSent)
    }

    /// The timeout of a future; the operations it began may have been executed.
    #[cold]
    pub(crate) fn elapsed() -> Self {
        Self::of(Status::DeadlineExceeded, "the time is over", Execution::MayHaveExecuted)
    }

    /// A call on a session with options for several servers.
    #[cold]
    pub(crate) fn needs_servers() -> Self {
        let text =
            "a call on a session has one server: it cannot be hedged, nor wait for another one";
        Self::not_sent(Status::InvalidArgument, text)
    }

    /// The end of a session before the session was open. The server is named once.
    #[cold]
    pub(crate) fn cannot_connect(remote: SocketAddr, reason: &Reason) -> Self {
        let text = at_server(remote, &reason.message);
        Self::not_sent(reason.status, text)
    }

    /// Returns the same error with other knowledge of the request's execution.
    #[must_use]
    pub fn with_execution(mut self, execution: Execution) -> Self {
        self.0.execution = execution;
        self
    }

    /// Returns the same error with another message.
    #[must_use]
    pub fn with_message(mut self, message: impl Into<String>) -> Self {
        self.0.message = message.into();
        self
    }
}

/// Returns a reason with the server's address, unless it names the address.
pub(crate) fn at_server(server: SocketAddr, why: &str) -> String {
    match why.contains(&server.to_string()) {
        true => why.to_owned(),
        false => format!("{server}: {why}"),
    }
}

impl Deref for Error {
    type Target = CallFailure;

    fn deref(&self) -> &CallFailure {
        &self.0
    }
}

/// The text for people, as printed for a `main` with an error.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&*self.0, f)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Error {}

impl From<Box<CallFailure>> for Error {
    #[inline]
    fn from(failure: Box<CallFailure>) -> Self {
        Self(failure)
    }
}

impl From<CallFailure> for Error {
    fn from(failure: CallFailure) -> Self {
        Self(Box::new(failure))
    }
}

impl From<Reason> for Error {
    fn from(Reason { status, message }: Reason) -> Self {
        Self::new(status, message)
    }
}

impl From<Error> for Reason {
    fn from(error: Error) -> Self {
        let CallFailure { status, message, .. } = *error.0;
        Self { status, message }
    }
}

impl From<PoolExhausted> for Error {
    #[cold]
    fn from(error: PoolExhausted) -> Self {
        Self::not_sent(Status::ResourceExhausted, error.to_string())
    }
}

impl From<OpenError> for Error {
    #[cold]
    fn from(error: OpenError) -> Self {
        let status = match error {
            OpenError::TooManySessions { .. } => Status::ResourceExhausted,
            OpenError::NotOpening => Status::Unavailable,
            _ => Status::Internal,
        };
        Self::not_sent(status, error.to_string())
    }
}

/// Why a nexus, an endpoint, a server or a group's multicast could not be set up, or ended badly.
///
/// Each text names a remedy. If the system refused, [`source`](std::error::Error::source) is its [`io::Error`].
///
/// ```
/// use petrel::Nexus;
/// use petrel::nexus::SetupError;
///
/// match Nexus::builder().listen("0.0.0.0:31850".parse().expect("an address")).start() {
///     Err(SetupError::NotLoopback { address }) => println!("{address} is for others, too: call insecure()"),
///     other => panic!("{other:?}"),
/// }
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// A setting is out of range or unknown, or asks for a resource in use.
    #[error("{0}")]
    Refused(Cow<'static, str>),
    /// Without credentials, only this host may connect.
    #[error(
        "refused to listen on {address}: anybody who reaches it could call this process; listen \
         on a loopback address, or call insecure() if the network is trusted"
    )]
    NotLoopback {
        /// The requested address.
        address: SocketAddr,
    },
    /// The system refused: the address is in use, or it lacks a thread, descriptor or random number.
    #[error("{message}")]
    System {
        /// The failed operation, the system's error, and a remedy.
        message: String,
        /// The system's error.
        source: io::Error,
    },
    /// A thread has panicked, and its work is lost: a server, or the control plane.
    #[error("{0}")]
    Panicked(&'static str),
}

/// The text for people, as printed for a `main` with an error.
impl fmt::Debug for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl SetupError {
    #[cold]
    pub(crate) fn refused(text: impl Into<Cow<'static, str>>) -> Self {
        Self::Refused(text.into())
    }

    /// The text is not a value of a setting.
    #[cold]
    pub(crate) fn no_setting(text: &str, expected: &str) -> Self {
        Self::refused(format!("{text:?}: {expected} expected"))
    }

    #[cold]
    pub(crate) fn of_transport(error: HostError) -> Self {
        let message = error.to_string();
        match error {
            HostError::Udp(UdpError::Bind { source, .. } | UdpError::Io(source))
            | HostError::Shm(ShmError::Io(source)) => Self::System { message, source },
            _ => Self::refused(message),
        }
    }

    #[cold]
    pub(crate) fn of_link(error: LinkError) -> Self {
        let message = error.to_string();
        match error {
            LinkError::Io(source) => Self::System { message, source },
            _ => Self::refused(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use petrel_transport::buf::{BufPool, PoolConfig};

    use super::*;

    fn source_kind(error: &SetupError) -> Option<io::ErrorKind> {
        let source = error.source()?.downcast_ref::<io::Error>();
        source.map(io::Error::kind)
    }

    fn in_use() -> io::Error {
        io::ErrorKind::AddrInUse.into()
    }

    /// In any nesting the system's error is the source, and the transport supplies the text.
    #[test]
    fn of_transport__has_the_systems_error_as_its_source() {
        let address = SocketAddr::from(([127, 0, 0, 1], 7));
        let by_system: [HostError; 3] = [
            UdpError::Bind { address, source: in_use() }.into(),
            UdpError::Io(in_use()).into(),
            ShmError::Io(in_use()).into(),
        ];
        for error in by_system {
            let text = error.to_string();
            let error = SetupError::of_transport(error);
            assert_eq!(error.to_string(), text);
            assert_eq!(source_kind(&error), Some(io::ErrorKind::AddrInUse), "{text}");
        }
        let error = SetupError::of_transport(UdpError::MtuTooSmall { configured: 9 }.into());
        assert!(matches!(error, SetupError::Refused(_)) && error.source().is_none(), "{error}");
        assert!(error.to_string().starts_with("an MTU of 9 bytes is below the "), "{error}");
    }

    #[test]
    fn of_link__has_the_systems_error_as_its_source() {
        let error = SetupError::of_link(LinkError::Io(in_use()));
        assert_eq!(source_kind(&error), Some(io::ErrorKind::AddrInUse));
        assert!(error.to_string().starts_with("cannot set up the link to the peer: "), "{error}");
        let error = SetupError::of_link(LinkError::TooManyPeers { limit: 3 });
        assert_eq!(source_kind(&error), None);
        assert!(error.to_string().contains("already has 3 peers"), "{error}");
    }

    #[test]
    fn from__keeps_the_words_and_says_that_nothing_was_sent() {
        let open = OpenError::TooManySessions { max: 4 };
        for (error, status) in [
            (open, Status::ResourceExhausted),
            (OpenError::NotOpening, Status::Unavailable),
            (OpenError::Unsound, Status::Internal),
        ] {
            assert_eq!(Error::from(error), Error::not_sent(status, error.to_string()));
        }
        let pool = BufPool::new(PoolConfig { max_bytes: 1 << 16, ..PoolConfig::default() });
        let error = pool.alloc(1 << 20, 1).map(drop).unwrap_err();
        assert_eq!(
            Error::from(error),
            Error::not_sent(Status::ResourceExhausted, error.to_string())
        );
    }

    #[test]
    fn cannot_connect__names_the_address_and_the_reason() {
        let reason = Reason::new(Status::PermissionDenied, "not you");
        let error = Error::cannot_connect(SocketAddr::from(([10, 0, 0, 1], 80)), &reason);
        let text = "PERMISSION_DENIED: 10.0.0.1:80: not you (the request was not sent)";
        assert_eq!(error.to_string(), text);
    }

    /// Needed for `?` in `main() -> Result<(), Box<dyn Error>>`, and in threads.
    #[test]
    fn errors__are_boxed_by_question_marks_on_any_thread() {
        fn both(
            set_up: Result<(), SetupError>,
        ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
            set_up?;
            Err(Error::new(Status::Aborted, "once more"))?
        }
        let texts = [Err(SetupError::no_setting("x", "y")), Ok(())]
            .map(|set_up| both(set_up).unwrap_err().to_string());
        assert_eq!(texts, ["\"x\": y expected", "ABORTED: once more (the server answered)"]);
    }
}
