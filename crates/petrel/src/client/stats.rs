//! What a client counts.

use crate::sync::{AtomicU64, Ordering};

/// A number that the endpoint's thread counts up, and that any thread reads.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// One thread counts: what it reads is what it wrote.
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

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a client has done since it was made.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct ClientStats { $($(#[$doc])* pub $name: u64,)* }

        /// The same while it is counted.
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
    /// Calls that were made.
    calls,
    /// Attempts beyond the first, hedges not counted.
    retries,
    /// Answers that sent a call to another server.
    redirects,
    /// Attempts made beside one that had not ended.
    hedges,
    /// Hedges that answered first.
    hedges_won,
    /// Attempts that were wanted and that the budget did not allow.
    budget_exhausted,
    /// Servers that can be called now.
    servers_ready,
    /// Sessions that were opened.
    sessions_opened,
    /// Attempts to open one that failed.
    connects_failed,
    /// Sessions that were open and took no further calls: they ended, or their server drained.
    sessions_left,
    /// Attempts that failed and of which nothing was sent.
    attempts_not_sent,
    /// Attempts that a server refused, unexecuted.
    attempts_refused,
    /// Attempts of which it is not known whether they were executed.
    attempts_uncertain,
    /// Attempts that a server answered with a failure.
    attempts_failed,
}
