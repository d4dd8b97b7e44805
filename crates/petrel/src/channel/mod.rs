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
mod queue;
mod reconnect;
mod stats;

pub(crate) use begin::{Beginning, Begun, Unfinished};
pub use config::{ChannelConfig, Target};
pub use stats::ChannelStats;
pub(crate) use stats::Counters;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use connection::Connection;

use crate::local::Handle;
use crate::overload::RetryBudget;
use crate::sync::Arc;
use crate::time::as_ns;

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
/// #     endpoint.on(1, |_, cx, request| { let data = request.data().to_vec(); request.reply(cx, &data) });
/// #     endpoint.run_until(|_, _| false);
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
    connections: RefCell<Vec<Rc<Connection>>>,
    budget: RefCell<RetryBudget>,
    /// Where the search for the least busy connection begins, so that equals take turns.
    turn: Cell<usize>,
    resolver: RefCell<Option<Resolver>>,
    counters: Arc<Counters>,
}

/// Looks for the servers again, as they may have moved.
struct Resolver {
    look_up: Box<dyn Fn()>,
    /// Not before.
    next_ns: u64,
}

impl Resolver {
    /// Whether the servers may be looked for now. If so, the next look has to wait.
    fn is_due(&mut self, now_ns: u64) -> bool {
        let is_due = self.next_ns <= now_ns;
        if is_due {
            self.next_ns = now_ns.saturating_add(as_ns(LOOK_UP_PAUSE));
        }
        is_due
    }
}

/// The time between two looks for the servers.
const LOOK_UP_PAUSE: Duration = Duration::from_secs(5);

impl<S> Handle<S> {
    /// A channel to servers that can all answer its calls. It begins to connect to them at once.
    ///
    /// # Panics
    /// Without a target.
    pub fn channel<T: Into<Target>>(
        &self,
        targets: impl IntoIterator<Item = T>,
        config: ChannelConfig,
    ) -> Channel {
        self.channel_that_counts(targets, config, Arc::default())
    }

    /// The same, whose counters others have, too.
    pub(crate) fn channel_that_counts<T: Into<Target>>(
        &self,
        targets: impl IntoIterator<Item = T>,
        config: ChannelConfig,
        counters: Arc<Counters>,
    ) -> Channel {
        let inner = Rc::new(Inner {
            handle: self.untyped(),
            budget: RefCell::new(RetryBudget::new(config.retry_budget, self.now_ns())),
            config,
            connections: RefCell::default(),
            turn: Cell::new(0),
            resolver: RefCell::default(),
            counters,
        });
        let channel = Channel { inner };
        channel.set_targets(targets);
        channel
    }
}

impl Channel {
    /// Waits until a session is open.
    pub async fn ready(&self) {
        self.inner.wait_for_any(|connection| connection.is_ready()).await;
    }

    /// Changes the servers. Sessions to those that stay go on; those that go get no further calls, and their sessions are
    /// closed when the calls that they have on the way are answered. A server that is named twice has two sessions.
    ///
    /// # Panics
    /// Without a target.
    pub fn set_targets<T: Into<Target>>(&self, targets: impl IntoIterator<Item = T>) {
        let inner = &self.inner;
        let mut before = inner.connections.take();
        let mut now: Vec<Rc<Connection>> = Vec::new();
        for target in targets.into_iter().map(Into::into) {
            now.push(match before.iter().position(|connection| connection.target == target) {
                Some(place) => before.remove(place),
                None => inner.connect(target, self),
            });
        }
        assert!(!now.is_empty(), "a channel has a target");
        // Who waits for one of them looks at the others.
        now.iter().for_each(|connection| connection.changed());
        *inner.connections.borrow_mut() = now;
        before.iter().for_each(|connection| connection.retire());
    }

    /// Has the servers looked for again when a session cannot be opened or has ended, at most every five seconds: `look_up` begins
    /// that, does not wait, and has [`Channel::set_targets`] called when it is done.
    pub(crate) fn set_resolver(&self, look_up: impl Fn() + 'static) {
        let resolver = Resolver { look_up: Box::new(look_up), next_ns: 0 };
        *self.inner.resolver.borrow_mut() = Some(resolver);
    }

    /// Servers to which a session is open.
    pub fn ready_count(&self) -> usize {
        self.inner.connections.borrow().iter().filter(|connection| connection.is_ready()).count()
    }

    /// What the channel has done.
    pub fn stats(&self) -> ChannelStats {
        self.inner.counters.snapshot()
    }
}

impl Inner {
    /// A server cannot be called any more: it may have moved.
    fn look_up(&self) {
        let now_ns = self.handle.now_ns();
        if let Some(resolver) = &mut *self.resolver.borrow_mut()
            && resolver.is_due(now_ns)
        {
            (resolver.look_up)();
        }
    }

    /// A server, to which a task keeps a session.
    fn connect(&self, target: Target, channel: &Channel) -> Rc<Connection> {
        let connection = Rc::new(Connection::new(target, &self.config));
        let keeper = connection::keep(Rc::downgrade(&channel.inner), Rc::clone(&connection));
        connection.set_keeper(self.handle.spawn(keeper));
        connection
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for connection in self.connections.get_mut() {
            connection.close();
        }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.inner.connections.borrow().iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_due__at_once_and_then_after_each_pause() {
        let pause_ns = as_ns(LOOK_UP_PAUSE);
        for begin_ns in [0, 1, 7 * pause_ns, u64::MAX - pause_ns] {
            let mut resolver = Resolver { look_up: Box::new(|| {}), next_ns: 0 };
            assert!(resolver.is_due(begin_ns));
            for early_ns in [0, 1, pause_ns - 1] {
                assert!(!resolver.is_due(begin_ns + early_ns));
            }
            assert!(resolver.is_due(begin_ns + pause_ns));
            assert_eq!(resolver.next_ns, (begin_ns + pause_ns).saturating_add(pause_ns));
        }
    }
}
