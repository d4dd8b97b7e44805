//! Calls to a service, from any thread.
//!
//! A [`Client`] is for one service, on one or several servers. The client keeps a session to every server, reopens
//! ended sessions, leaves draining servers, and retries calls where safe. Clones are the same client, for any thread or
//! task: the sessions belong to an endpoint whose thread makes the calls in its event loop. By default all clients of
//! the process share a thread ([`Background`]), and no program has to start one.
//!
//! ```
//! use petrel::Client;
//! # use petrel::endpoint::EndpointConfig;
//! # use petrel::Nexus;
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
//! A client retries a call depending on the outcome of each attempt:
//!
//! | outcome of the attempt | retried |
//! | --- | --- |
//! | UNAVAILABLE, and not sent, or refused by the server unexecuted | always |
//! | RESOURCE_EXHAUSTED, and refused by the server unexecuted | always |
//! | UNAVAILABLE, and it may have been executed | only a call that is [idempotent](Call::idempotent) |
//! | no answer within the [timeout of an attempt](ClientConfig::attempt_timeout) | as UNAVAILABLE: only calls that are idempotent have it |
//! | any other | never: the server has answered, or the deadline has passed |
//!
//! The call's timeout, [`ClientConfig::attempts_max`] and the [`RetryBudget`](crate::overload::RetryBudget) bound the
//! retries. An attempt that reached no server does not count. The execution reported for a call covers all attempts.
//!
//! In some services only one server, the leader, can answer. There a [`Judge`] interprets the service's own responses.
//! The client then follows redirects, tries the leader first, and pauses while there is none. A redirect is not an
//! attempt; in such a client, calls with a [key](Call::key) still map to a server of their own.
//!
//! | file | contents |
//! | --- | --- |
//! | `service_client` | [`Client`], and the state shared by clones |
//! | `call` | [`Call`]: the options of a call, and the call as a future |
//! | `caller` | calls back to clients: [`Request::caller`](crate::Request::caller) |
//! | `background` | [`Background`]: the threads that run clients' endpoints |
//! | `targets` | [`Targets`]: addresses and names of servers |
//! | `servers_file` | servers listed in a file that is watched |
//! | `spawned` | [`Spawned`]: tasks on the thread that makes the calls |
//! | `on_endpoint` | clients on their endpoint's own thread |
//! | `lookup` | the addresses of servers, found on a thread |
//! | `park` | parking a thread |

mod background;
mod call;
mod caller;
mod lookup;
mod on_endpoint;
mod park;
mod pending;
mod servers_file;
mod service_client;
mod spawned;
mod targets;

pub use background::{Background, BackgroundBuilder};
pub use call::Call;
pub(crate) use call::ReadResponse;
pub use park::wait;
pub use pending::Pending;
pub use service_client::{Client, ClientBuilder};
pub use spawned::Spawned;
pub use targets::{TargetName, Targets};

pub use crate::endpoint::Callbacks;
pub use crate::local::client_call::Response;
pub use crate::values::client::{
    Balance, ClientConfig, ClientStats, Judge, Target, Verdict, owner_of,
};

use std::time::Duration;

use crate::local::Hub;
use crate::sync::now_ns;
use crate::values::CallOptions;
use crate::workers::inherited_deadline_ns;

/// Returns when a call ends that starts now on this thread: `timeout` is for a call without limits. The deadline of the
/// current request, handled by a task of an endpoint or by a worker, limits it.
fn end_ns(options: &CallOptions, timeout: Duration) -> u64 {
    Hub::with_current(|hub| hub.end_ns(options, timeout, hub.clock_now_ns())).unwrap_or_else(|| {
        let own_ns = options.end_ns(now_ns(), timeout);
        inherited_deadline_ns().map_or(own_ns, |at_ns| own_ns.min(at_ns))
    })
}

/// Returns the deadline of the request that a task of an endpoint or a worker handles on this thread.
pub(crate) fn inherited_ns() -> Option<u64> {
    Hub::with_current(Hub::inherited_ns).unwrap_or_else(inherited_deadline_ns)
}
