//! What the nexus counts: every refusal and every end of a connection has its own number.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a nexus since its start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct NexusStats { $($(#[$doc])* pub $name: u64,)* }

        impl NexusStats {
            /// The counters as one JSON object.
            pub fn to_json(self) -> String {
                let pairs = [$((stringify!($name), self.$name)),*];
                let mut json = String::from("{");
                for (position, (name, value)) in pairs.iter().enumerate() {
                    let comma = if position == 0 { "" } else { "," };
                    // Writing to a string cannot fail.
                    let _ = write!(json, "{comma}\"{name}\":{value}");
                }
                json.push('}');
                json
            }
        }

        /// The counters while they count. Only the nexus's thread writes them.
        #[derive(Debug, Default)]
        pub(super) struct Counters { $(pub(super) $name: Counter,)* }

        impl Counters {
            pub(super) fn snapshot(&self) -> NexusStats {
                NexusStats { $($name: self.$name.get(),)* }
            }
        }
    };
}

counters! {
    /// Connections that peers made to this process.
    connections_accepted,
    /// Connections that this process made to peers.
    connections_dialed,
    /// Times that a connection was tried again because it broke before it was of use.
    connections_redialed,
    /// Connections open now.
    connections_open,
    /// Connections dropped because too many had not said HELLO, or had no use.
    dropped_ungreeted_full,
    /// Connections without a session that were closed because a newcomer needed the place.
    dropped_idle_full,
    /// Connections dropped at once because there were too many in all.
    dropped_connections_full,
    /// Connections dropped because no HELLO came in time.
    dropped_hello_timeout,
    /// Connections dropped because a message came too slowly.
    dropped_slow_message,
    /// Connections dropped because the peer gave no sign of life.
    dropped_silent,
    /// Connections dropped because the peer did not read.
    dropped_not_reading,
    /// Connections closed because what came was not Petrel at all.
    refused_strangers,
    /// Connections closed because the peer broke the protocol.
    refused_malformed,
    /// Connections closed because no protocol version was in common.
    refused_version,
    /// Connections that broke: end of stream or reset without GOODBYE.
    connections_broken,
    /// Connections closed because nothing used them.
    connections_idle,
    /// GOODBYEs received.
    goodbyes_received,
    /// Connections that could not be made: refused, no route, no answer.
    dials_failed,
    /// Peers found to be another process than the one that was at their address before.
    peers_restarted,
    /// Times that a connection could not be accepted for want of descriptors or memory.
    accept_errors,
    /// Links up now.
    links_up,
    /// Links opened, by either side.
    links_opened,
    /// Links over shared memory among them.
    links_opened_shm,
    /// Links over UDP whose packets switches may mark.
    links_opened_ecn,
    /// Links that this process asked for and did not get.
    links_failed,
    /// Links that peers asked for before their endpoint was there.
    links_early,
    /// Links that peers asked for and were refused.
    links_refused,
    /// Links without shared memory because an endpoint of this process does not use or ask for it.
    no_shm_endpoint,
    /// Links without shared memory because it is off or impossible in this process.
    no_shm_process,
    /// Links without shared memory because the peer is on another host, of another user, or has none.
    no_shm_peer,
    /// Times that shared memory was agreed on and could not be set up.
    shm_fallbacks,
    /// Connections to the rendezvous that were dropped: no or a wrong ticket, or too slow.
    rendezvous_dropped,
    /// Sessions that peers proposed.
    sessions_proposed,
    /// Sessions agreed on, by either side.
    sessions_opened,
    /// Sessions that were refused, by either side.
    sessions_refused,
    /// Proposals that nobody answered in time.
    sessions_unanswered,
    /// Messages that name a link or a proposal that is no more: late, and ignored.
    late_messages,
    /// Messages of this process that could not be encoded: an error in an endpoint.
    unsendable_messages,
    /// Requests for counters that were refused because they came from another host.
    stats_refused,
    /// Requests for counters that were answered.
    stats_answered,
}

/// One number, written by one thread and read by any.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn increment(&self) {
        self.add(1);
    }

    /// For what is counted as it is now.
    pub(super) fn decrement(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// For what is counted as it is now.
    pub(super) fn set(&self, value: usize) {
        self.0.store(value as u64, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn to_json__names_every_counter() {
        let counters = Counters::default();
        counters.connections_accepted.add(3);
        counters.stats_answered.increment();
        let json = counters.snapshot().to_json();
        assert!(
            json.starts_with("{\"connections_accepted\":3,\"connections_dialed\":0,"),
            "{json}"
        );
        assert!(json.ends_with(",\"stats_answered\":1}"), "{json}");
        assert_eq!(json.matches(':').count(), json.matches(',').count() + 1);
    }
}
