//! Worlds of one client and a group of members, to which the packets of large requests go by multicast
//! (`docs/wire-protocol.md` §12).
//!
//! A seed draws the members, how their endpoints are set up, what happens to packets, and what the client does: calls to
//! all, to a majority or to any, of sizes from a few bytes to hundreds of packets, some at a time. Members die and come
//! back, stand still, or hear no multicast for a while, as their port of the switch lets none through; some want none.
//! The client closes sessions, opens others, and forms its group anew. After that, everything comes to an end. Checked are
//!
//! - **calls**: each ends once, with as many right answers as it needs, or with a failure that has a reason: a deadline,
//!   or a trouble of enough members. A member executes a call at most once, and exactly once if it answered;
//! - **recovery**: whoever misses packets, or all of them, gets them alone. The number of packets sent again is in
//!   proportion to what happened to packets; where nothing did, none is;
//! - **no storm of replies**: a member whose answers are short never sends more frames than it was given: what comes by multicast is answered
//!   once a burst, and not by itself;
//! - **saving**: in still worlds the client sends a packet to a group once, and not once for each member;
//! - **rest**: in the end no session, call, group, box or buffer is left, nobody listens to a group, and all packets, copies of
//!   switches among them, are accounted for.

mod ledger;
mod node;
mod world;

pub(crate) use world::run_world;

/// What happened in a world that kept all rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Two runs share it if the same happened in both.
    pub digest: u64,
    /// Calls to groups.
    pub calls: u64,
    /// Those that enough members answered.
    pub succeeded: u64,
    /// The client's packets that went by multicast.
    pub multicast_sent: u64,
    /// Packets that members took from multicast.
    pub adopted: u64,
    /// Those that came before their announcement, and were kept.
    pub held: u64,
    /// Requests of which a member had heard nothing.
    pub missed: u64,
    /// Copies of packets that switches and hosts made.
    pub replicated: u64,
    /// Packets that the client sent again.
    pub repeated: u64,
    /// Members that died.
    pub deaths: u64,
    /// Members that would not join, or could not.
    pub refused: u64,
}

impl Report {
    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        [
            ("party_calls", self.calls),
            ("party_calls_succeeded", self.succeeded),
            ("party_packets_multicast", self.multicast_sent),
            ("party_packets_adopted", self.adopted),
            ("party_packets_held", self.held),
            ("party_requests_missed", self.missed),
            ("party_packets_replicated", self.replicated),
            ("party_packets_repeated", self.repeated),
            ("party_members_died", self.deaths),
            ("party_members_refused", self.refused),
        ]
        .into_iter()
    }
}

#[cfg(test)]
mod tests;
