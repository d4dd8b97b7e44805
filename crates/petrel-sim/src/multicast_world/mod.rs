//! Worlds of one client and a group of members that receive large requests by multicast (`docs/wire-protocol.md` §12).
//!
//! A seed draws the members, the settings of their endpoints, the faults of packets, and the client's actions: calls to
//! all members, to a majority or to any, from a few bytes to hundreds of packets, some at a time. Members crash and
//! restart, stop, or lose multicast for a while because their switch port blocks it; some refuse multicast. The client
//! closes and opens sessions, and rebuilds its group. Then everything must end. The checker verifies
//!
//! - **calls**: a call ends once, with the needed number of right answers, or with a failure that has a
//!   reason: a deadline, or fault windows of enough members. A member executes a call at most once, and
//!   exactly once if it answers;
//! - **recovery**: a member gets missed packets again by unicast. The number of retransmissions is in
//!   proportion to faults of packets; without faults, nothing is retransmitted;
//! - **no implosion of replies**: a member with short answers never sends more frames than it received:
//!   multicast packets are acknowledged once per burst, not individually;
//! - **saving**: without faults the client sends a packet to a group once, and not once for every member;
//! - **idle state**: at the end no session, call, group, reassembly state or buffer is left, no port
//!   listens to a group, and all packets, including copies by switches, are accounted for.

mod ledger;
mod node;
mod world;

pub(crate) use world::run_world;

/// The results of a world that kept all rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Runs of equal events have equal digests.
    pub digest: u64,
    /// Calls to groups.
    pub calls: u64,
    /// Calls that enough members answered.
    pub succeeded: u64,
    /// Packets that the client sent by multicast.
    pub multicast_sent: u64,
    /// Packets that members accepted from multicast.
    pub adopted: u64,
    /// Packets that arrived before their announcement, and were kept.
    pub held: u64,
    /// Requests of which a member had received no packet.
    pub missed: u64,
    /// Copies of packets made by switches and hosts.
    pub replicated: u64,
    /// Packets that the client retransmitted.
    pub repeated: u64,
    /// Members that crashed.
    pub crashes: u64,
    /// Members that refused to join, or could not.
    pub refused: u64,
}

impl Report {
    /// Returns names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        [
            ("multicast_calls", self.calls),
            ("multicast_calls_succeeded", self.succeeded),
            ("multicast_packets_sent", self.multicast_sent),
            ("multicast_packets_adopted", self.adopted),
            ("multicast_packets_held", self.held),
            ("multicast_requests_missed", self.missed),
            ("multicast_packets_replicated", self.replicated),
            ("multicast_packets_repeated", self.repeated),
            ("multicast_members_crashed", self.crashes),
            ("multicast_members_refused", self.refused),
        ]
        .into_iter()
    }
}

#[cfg(test)]
mod tests;
