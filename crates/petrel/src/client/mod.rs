//! Calls to a service, from any thread.
//!
//! A [`Client`] is for one service, at one or several servers. It keeps a session to each, opens a new one when one ends,
//! leaves servers that drain, and tries a call again where that is safe (see [`channel`](crate::channel) for the rules).
//! Clones are the same client, and any thread or task may have one: the sessions belong to an endpoint whose thread makes
//! the calls in its event loop. By default this is a thread that all clients of the process share ([`Background`]), so that no
//! program has to start one.
//!
//! ```
//! use petrel::Client;
//! # use petrel::{EndpointConfig, Nexus};
//! # use std::time::Duration;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let nexus = Nexus::builder().listen("127.0.0.1:0".parse()?).start()?;
//! # let address = nexus.local_addr().expect("it listens");
//! # std::thread::spawn(move || {
//! #     let mut endpoint = nexus.endpoint(EndpointConfig::default()).expect("an endpoint");
//! #     endpoint.on(1, |_, cx, request| { let data = request.data().to_vec(); request.reply(cx, &data) });
//! #     endpoint.run_until(|_, _| false);
//! # });
//! const ECHO: u16 = 1;
//!
//! let client = Client::connect_wait(address)?;                     // or Client::connect(…).await
//! let reply = client.call(ECHO, b"petrel").wait()?;                // or .await, in any executor
//! assert_eq!(reply, b"petrel");
//! let reply = client.call(ECHO, "again").timeout(Duration::from_secs(1)).idempotent().wait()?;
//! assert_eq!(reply, b"again");
//! # Ok(())
//! # }
//! ```
//!
//! | file | what it holds |
//! | --- | --- |
//! | `service_client` | [`Client`], and what its clones share |
//! | `call` | [`Call`]: the options of a call, and the call as a future |
//! | `background` | [`Background`]: the threads that run clients' endpoints |
//! | `targets` | [`Targets`]: addresses and names of servers |
//! | `session_client`, `remote_call`, `parallel` | the same on one session, for who needs just this one |
//! | `places`, `state`, `park` | the bound on calls on their way, a call between two threads, and how a thread waits |

mod background;
mod call;
mod error;
mod parallel;
mod park;
pub(crate) mod places;
mod remote_call;
mod response;
mod service_client;
mod session_client;
pub(crate) mod state;
mod targets;

pub use background::{Background, BackgroundBuilder};
pub use call::Call;
pub use error::{NotStarted, NotStartedReason};
pub use parallel::{ParallelClient, Permit};
pub use remote_call::RemoteCall;
pub use response::Response;
pub use service_client::{Client, ClientBuilder};
pub(crate) use service_client::{Service, ServiceKey, ServiceKeys};
pub use session_client::SessionClient;
pub use targets::{TargetName, Targets};

use crate::CallOptions;
use crate::inbox::Poster;
use crate::post::Post;
use crate::sync::thread::{self, ThreadId};
use crate::sync::{Arc, now_ns};
use crate::workers::inherited_deadline_ns;
use places::Places;

/// What the clients of an endpoint share.
pub(crate) struct ClientShared {
    pub(crate) poster: Poster<Post>,
    pub(crate) places: Arc<Places>,
    pub(crate) places_max: usize,
    pub(crate) services: ServiceKeys,
    pub(crate) endpoint_thread: ThreadId,
}

impl ClientShared {
    /// # Panics
    /// On the thread of the endpoint, while there is one.
    fn check_thread(&self) {
        assert!(
            thread::current().id() != self.endpoint_thread || !self.poster.is_open(),
            "the thread that runs the endpoint cannot wait for a call of its client: the endpoint would not run; await \
             the call in a task there"
        );
    }
}

/// The options of a call that starts now, on this thread: as times, no later than the request that a worker runs here.
fn begun(options: CallOptions) -> CallOptions {
    // Most calls of a session's client need no clock.
    options.begun(now_ns).no_later_than(inherited_deadline_ns())
}
