//! The nexus's counters: one for every refusal and every way a connection ends.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use super::media::{ObstacleAt, shm, stream, verbs};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a nexus since its start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct NexusStats { $($(#[$doc])* pub $name: u64,)* }

        impl NexusStats {
            /// Returns the counters as one JSON object.
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

        /// The live counters. Only the nexus's thread writes them.
        #[derive(Debug, Default)]
        pub(super) struct Counters { $(pub(super) $name: Counter,)* }

        impl Counters {
            /// Counts a link without a medium that is missed.
            pub(super) fn count_missed(&self, at: ObstacleAt) {
                match at {
                    ObstacleAt::Endpoint => self.no_shm_endpoint.increment(),
                    ObstacleAt::Process => self.no_shm_process.increment(),
                    ObstacleAt::Peer => self.no_shm_peer.increment(),
                }
            }

            /// Counts a link whose agreed medium could not be set up.
            pub(super) fn count_fallback(&self, kind: u8) {
                let is_memory = kind == shm::KIND;
                let counter = if is_memory { &self.shm_fallbacks } else { &self.streams_failed };
                counter.increment();
            }

            /// Counts a link over the medium of a kind, agreed on with or without marks.
            pub(super) fn count_opened(&self, kind: u8, ecn: bool) {
                self.links_opened.increment();
                self.links_opened_shm.add(u64::from(kind == shm::KIND));
                self.links_opened_stream.add(u64::from(kind == stream::KIND));
                self.links_opened_verbs.add(u64::from(kind == verbs::KIND));
                self.links_opened_ecn.add(u64::from(ecn));
            }

            pub(super) fn snapshot(&self) -> NexusStats {
                NexusStats { $($name: self.$name.get(),)* }
            }
        }
    };
}

counters! {
    /// Connections accepted from peers.
    connections_accepted,
    /// Connections that this process made to peers.
    connections_dialed,
    /// Connections that broke before any use and were tried again.
    connections_redialed,
    /// Connections open now.
    connections_open,
    /// Connections dropped because too many had not said HELLO or were idle.
    dropped_ungreeted_full,
    /// Connections without a session closed to make room for a new one.
    dropped_idle_full,
    /// Connections dropped at once because the limit for all was reached.
    dropped_connections_full,
    /// Connections dropped because no HELLO arrived in time.
    dropped_hello_timeout,
    /// Connections dropped because a message arrived too slowly.
    dropped_slow_message,
    /// Connections dropped because nothing arrived from the peer for too long.
    dropped_silent,
    /// Connections dropped because the peer did not read.
    dropped_not_reading,
    /// Connections closed because the peer spoke another protocol.
    refused_strangers,
    /// Connections without TLS that a permissive process has accepted.
    connections_plain,
    /// Connections closed because the peer was not authenticated, or spoke without TLS.
    refused_untrusted,
    /// Connections left for new ones because a certificate ends.
    connections_renewed,
    /// Connections ended because the peer is not trusted any more, or its certificate has ended.
    dropped_distrusted,
    /// Connections closed because the peer broke the protocol.
    refused_malformed,
    /// Connections closed for lack of a common protocol version.
    refused_version,
    /// Connections that broke: end of stream or reset without GOODBYE.
    connections_broken,
    /// Connections closed because they were idle.
    connections_idle,
    /// GOODBYEs received.
    goodbyes_received,
    /// Attempts to connect that failed: refused, no route, no answer.
    dials_failed,
    /// Peers found to be a different process than the last one at their address.
    peers_restarted,
    /// Times that accepting failed for lack of descriptors or memory.
    accept_errors,
    /// Links up now.
    links_up,
    /// Links opened, by either side.
    links_opened,
    /// Links opened over shared memory.
    links_opened_shm,
    /// Links opened over TCP streams.
    links_opened_stream,
    /// Links opened over RDMA cards.
    links_opened_verbs,
    /// Links opened over UDP and RDMA cards whose packets switches may mark.
    links_opened_ecn,
    /// Links over UDP and RDMA cards on which no datagram got through within 200 ms.
    links_unreached,
    /// Links requested by this process that failed.
    links_failed,
    /// Links that peers requested before their endpoint was attached.
    links_early,
    /// Links requested by peers and refused.
    links_refused,
    /// Links without shared memory because a local endpoint does not use or ask for it.
    no_shm_endpoint,
    /// Links without shared memory because the process disabled or cannot use it.
    no_shm_process,
    /// Links without shared memory, because the peer is on a different host, of a different user, or without shared
    /// memory.
    no_shm_peer,
    /// Links whose agreed shared memory could not be set up.
    shm_fallbacks,
    /// Links whose agreed TCP stream could not be made.
    streams_failed,
    /// Connections dropped because they presented no ticket of a stream of this process.
    streams_dropped,
    /// Connections to the rendezvous that were dropped: no or a wrong ticket, or too slow.
    rendezvous_dropped,
    /// Sessions that peers proposed.
    sessions_proposed,
    /// Sessions accepted, by either side.
    sessions_opened,
    /// Sessions refused, by either side.
    sessions_refused,
    /// Proposals not answered in time.
    sessions_unanswered,
    /// Messages ignored because their link or proposal had ended already.
    late_messages,
    /// Local messages that failed to encode: an error in an endpoint.
    unsendable_messages,
    /// Requests for counters refused: from another host, or without the right.
    stats_refused,
    /// Requests for counters answered.
    stats_answered,
}

/// A counter written by a single thread and read by any.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn increment(&self) {
        self.add(1);
    }

    /// Counts down, for counters of a current number.
    pub(super) fn decrement(&self) {
        let former = self.0.fetch_sub(1, Ordering::Relaxed);
        assert!(former > 0, "a current number counts down no further than to zero");
    }

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
