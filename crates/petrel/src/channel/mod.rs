//! Channels: calls to a service, whatever becomes of the sessions to it.
//!
//! A [`Session`](crate::Session) is to one process and ends with it. A [`Channel`] is to one or several
//! servers that can all answer: it keeps a session to each, opens a new one with back-off when one
//! ends, leaves servers that drain, and chooses for each call the session with the fewest calls on the
//! way. On top of that it tries again where that is safe, or where the caller says that it is:
//!
//! | how the attempt failed | tried again |
//! | --- | --- |
//! | UNAVAILABLE, and not sent, or refused by the server unexecuted | always |
//! | RESOURCE_EXHAUSTED, and refused by the server unexecuted | always |
//! | UNAVAILABLE, and it may have been executed | only a call that is [idempotent](crate::CallOptions::idempotent) |
//! | any other | never: the server has answered, or the time is over |
//!
//! Each attempt is judged by its own outcome: a call whose first attempt was lost and whose second was refused is
//! tried a third time. What the call reports counts all of its attempts.
//!
//! and always within the call's deadline, the attempts of [`ChannelConfig::attempts_max`], and the
//! [`RetryBudget`]: where most calls fail, retries stop, or they would be
//! the larger part of the load. A server that refuses because it has too much to do is asked for less
//! ([`ConcurrencyLimit`](crate::overload::ConcurrencyLimit)).
//!
//! All of it runs as tasks of the endpoint, and so does it in the simulator.

mod attempt;
mod begin;
mod call;
mod config;
mod connection;
mod hedge;
mod permit;
mod reconnect;

pub(crate) use begin::{Beginning, Begun, Unfinished};
pub use config::{ChannelConfig, Target};

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use connection::Connection;

use crate::local::{Handle, Task};
use crate::overload::RetryBudget;

/// Calls to one service at one or several servers; see the [module](self). Clones are the same channel;
/// it stays on its endpoint's thread. When the last clone is dropped, its sessions are closed.
///
/// ```
/// # use petrel::{CallOptions, ChannelConfig, EndpointConfig, Nexus};
/// # use std::time::Duration;
/// # let server = Nexus::builder().listen("127.0.0.1:0".parse()?).start()?;
/// # let address = server.local_addr().expect("it listens");
/// # std::thread::spawn(move || {
/// #     let mut endpoint = server.endpoint(EndpointConfig::default()).expect("an endpoint");
/// #     endpoint.register(1, |cx, request| { let data = request.data().to_vec(); request.reply(cx, &data) });
/// #     endpoint.run_until(|_| false);
/// # });
/// let mut endpoint = Nexus::builder().start()?.endpoint(EndpointConfig::default())?;
/// let channel = endpoint.handle().channel([address], ChannelConfig::default());
/// let options = CallOptions::default().timeout(Duration::from_secs(1)).idempotent();
/// let reply = endpoint.block_on(channel.call(1, b"hello", options))?;
/// assert_eq!(&reply[..], b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Channel {
    inner: Rc<Inner>,
}

struct Inner {
    handle: Handle,
    config: ChannelConfig,
    connections: Vec<Rc<Connection>>,
    budget: RefCell<RetryBudget>,
    /// Where the search for the least busy connection begins, so that equals take turns.
    turn: Cell<usize>,
    keepers: RefCell<Vec<Task<()>>>,
    counters: Counters,
}

/// What a channel has done, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelStats {
    /// Calls that were made on the channel.
    pub calls: u64,
    /// Attempts beyond the first, hedges not counted.
    pub retries: u64,
    /// Attempts made beside one that had not ended.
    pub hedges: u64,
    /// Hedges that answered first.
    pub hedges_won: u64,
    /// Attempts that were wanted and that the budget did not allow.
    pub budget_exhausted: u64,
    /// Sessions that were opened.
    pub sessions_opened: u64,
    /// Attempts to open one that failed.
    pub connects_failed: u64,
    /// Sessions that were open and took no further calls: they ended, or their server drained.
    pub sessions_left: u64,
    /// Attempts that failed and of which nothing was sent.
    pub attempts_not_sent: u64,
    /// Attempts that a server refused, unexecuted.
    pub attempts_refused: u64,
    /// Attempts of which it is not known whether they were executed.
    pub attempts_uncertain: u64,
    /// Attempts that a server answered with a failure.
    pub attempts_failed: u64,
}

#[derive(Default)]
struct Counters(Cell<ChannelStats>);

impl Counters {
    fn count(&self, what: impl FnOnce(&mut ChannelStats)) {
        let mut stats = self.0.get();
        what(&mut stats);
        self.0.set(stats);
    }
}

impl Handle {
    /// A channel to servers that can all answer its calls. It begins to connect to them at once.
    ///
    /// # Panics
    /// Without a target.
    pub fn channel<T: Into<Target>>(
        &self,
        targets: impl IntoIterator<Item = T>,
        config: ChannelConfig,
    ) -> Channel {
        let connection = |target: T| Rc::new(Connection::new(target.into(), &config));
        let connections: Vec<_> = targets.into_iter().map(connection).collect();
        assert!(!connections.is_empty(), "a channel has a target");
        let inner = Rc::new(Inner {
            handle: self.clone(),
            budget: RefCell::new(RetryBudget::new(config.retry_budget, self.now_ns())),
            config,
            connections,
            turn: Cell::new(0),
            keepers: RefCell::default(),
            counters: Counters::default(),
        });
        let keep = |connection: &Rc<Connection>| {
            self.spawn(connection::keep(Rc::downgrade(&inner), Rc::clone(connection)))
        };
        *inner.keepers.borrow_mut() = inner.connections.iter().map(keep).collect();
        Channel { inner }
    }
}

impl Channel {
    /// Waits until a session is open.
    pub async fn ready(&self) {
        self.inner.wait_for_any(|connection| connection.is_ready()).await;
    }

    /// Servers to which a session is open.
    pub fn ready_count(&self) -> usize {
        self.inner.connections.iter().filter(|connection| connection.is_ready()).count()
    }

    /// What the channel has done.
    pub fn stats(&self) -> ChannelStats {
        self.inner.counters.0.get()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.keepers.get_mut().iter().for_each(Task::abort);
        for connection in &self.connections {
            connection.close();
        }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.inner.connections.iter()).finish()
    }
}
