//! The counters of a client.

use crate::sync::{AtomicU64, Ordering};

/// A counter that the endpoint's thread increments and any thread reads.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds to the counter. A single thread writes: no atomic addition is needed.
    pub(crate) fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    pub(crate) fn increment(&self) {
        self.add(1);
    }

    pub(crate) fn decrement(&self) {
        let count = self.0.load(Ordering::Relaxed).checked_sub(1);
        self.0.store(count.expect("what goes was counted"), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a client since its creation.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct ClientStats { $($(#[$doc])* pub $name: u64,)* }

        /// The live counters.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: Counter,)* }

        impl Counters {
            pub(crate) fn snapshot(&self) -> ClientStats {
                ClientStats { $($name: self.$name.get(),)* }
            }
        }
    };
}

counters! {
    /// Calls made.
    calls,
    /// Attempts after the first, without hedges.
    retries,
    /// Responses that redirected a call to another server.
    redirects,
    /// Attempts made while another attempt was outstanding.
    hedges,
    /// Hedges that answered first.
    hedges_won,
    /// Attempts denied by the retry budget.
    budget_exhausted,
    /// Times that a server began to be avoided, because it was slow or failing.
    servers_avoided,
    /// Servers available for calls now.
    servers_ready,
    /// Sessions opened.
    sessions_opened,
    /// Failed attempts to open a session.
    connects_failed,
    /// Open sessions given up because they ended, or their server drained.
    sessions_left,
    /// Failed attempts of which nothing was sent.
    attempts_not_sent,
    /// Attempts refused by a server, unexecuted.
    attempts_refused,
    /// Failed attempts that may or may not have been executed.
    attempts_uncertain,
    /// Attempts answered with a failure by a server.
    attempts_failed,
}
