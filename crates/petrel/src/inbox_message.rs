//! The messages that other threads post to an endpoint.

use std::any::Any;

use petrel_proto::{RequestHandle, Status};

use crate::control::LinkId;
use crate::local::Handle;
use crate::local::client_call::state::{CallState, Pending};
use crate::sync::{Arc, AtomicBool, Weak};
use crate::values::CallOptions;
use crate::values::client::{ClientConfig, Counters, ServiceKey, Target};
use crate::values::expected::Expected;

/// A message from another thread to an endpoint.
pub(crate) enum InboxMessage {
    /// Answer a request.
    Answer(Answer),
    /// Answer a request whose handler was not and will not be run.
    Refuse(Refuse),
    /// Make a call.
    Start(StartCall),
    /// Cancel a call whose outcome is no longer wanted.
    Cancel(Arc<CallState>),
    /// Connect to the servers of a client.
    OpenService(Box<OpenService>),
    /// Change the servers of a client.
    SetTargets(ServiceKey, Vec<Target>),
    /// Expect the methods of a table at the servers of a client.
    ExpectTable(ServiceKey, Arc<Expected>),
    /// The last handle of a client is gone.
    CloseService(ServiceKey),
    /// Begin a task.
    Run(RunTask),
}

/// A task to begin.
pub(crate) struct RunTask {
    pub(crate) begin: Box<dyn FnOnce(&Handle) + Send>,
    /// Whether the task is the library's own, and keeps no object of the endpoint elsewhere.
    pub(crate) is_library: bool,
}

/// The answer to a request: the message, or a text for people if `status` is not OK.
pub(crate) struct Answer {
    pub(crate) handle: RequestHandle,
    pub(crate) status: Status,
    pub(crate) message: Vec<u8>,
    /// The request's flag, to be reused.
    pub(crate) cancelled: Arc<AtomicBool>,
}

/// The refusal of a request, with a text for people.
pub(crate) struct Refuse {
    pub(crate) handle: RequestHandle,
    pub(crate) status: Status,
    pub(crate) text: &'static str,
}

/// A call to make.
pub(crate) struct StartCall {
    pub(crate) pending: Pending,
    pub(crate) service: ServiceKey,
    pub(crate) method: u16,
    pub(crate) request: Vec<u8>,
    /// Without their times, which `end_ns` replaces.
    pub(crate) options: CallOptions,
    pub(crate) end_ns: u64,
}

/// Starts another lookup of a service's servers, without waiting.
pub(crate) type LookUp = Box<dyn Fn() + Send>;

/// Makes the callbacks of a client, on the endpoint's thread: an `endpoint::Callbacks`, whose type this room does not know.
pub(crate) type MakeCallbacks = Box<dyn FnOnce(&Handle) -> Box<dyn Any> + Send>;

/// How a client reaches its servers.
pub(crate) enum ServiceWay {
    /// By links of the endpoint.
    To,
    /// By links of its own, on which the servers may call back.
    Serving(MakeCallbacks),
    /// By this link, which the server has opened.
    Back(LinkId),
}

/// The service of a new client.
pub(crate) struct OpenService {
    pub(crate) number: ServiceKey,
    /// Dangling if the client is gone.
    pub(crate) counters: Weak<Counters>,
    pub(crate) targets: Vec<Target>,
    /// Present if servers have names.
    pub(crate) look_up: Option<LookUp>,
    pub(crate) config: ClientConfig,
    pub(crate) way: ServiceWay,
    /// Ends when the first session is open, or none could be opened.
    pub(crate) opened: Pending,
}
