//! Resources of the process held by peers, per source: no source can exhaust the resources of all.
//!
//! Many processes may share a source: all of a host, or all that have proven one identity. The share of a source is therefore
//! large, and a further rule protects peers of the same source: idle connections yield to new ones (see `listener` and
//! `admit`).

use std::collections::HashMap;

use super::limits::{
    LINKS_PER_SOURCE_MAX, PROPOSALS_PER_SOURCE_MAX, SESSION_BYTES_MAX, session_bytes, slots_left,
};
use crate::source::Source;
use crate::tables::shrink;

/// The resources held by the peers of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    linked: usize,
    links: usize,
    /// Unanswered session proposals.
    proposals: usize,
    /// Bytes of sessions, including proposed ones.
    session_bytes: usize,
}

impl Usage {
    /// The usage of a connection with these links, proposals, and bytes of sessions.
    pub(super) fn of_connection(links: usize, proposals: usize, session_bytes: usize) -> Self {
        Self { linked: usize::from(links > 0), links, proposals, session_bytes }
    }

    /// Returns the bytes of sessions, including proposed ones.
    pub(super) fn session_bytes(&self) -> usize {
        self.session_bytes
    }

    pub(super) fn add(&mut self, other: Self) {
        self.linked += other.linked;
        self.links += other.links;
        self.proposals += other.proposals;
        self.session_bytes += other.session_bytes;
    }
}

/// The usage of all sources. Everything added is removed again: the sums cover existing objects.
#[derive(Debug)]
pub(super) struct UsageTable {
    by_source: HashMap<Source, Usage>,
    all: Usage,
    /// Memory that the sessions of a source may use.
    session_bytes_per_source_max: usize,
}

/// Why a source gets no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exhausted {
    /// The peer's source has used its share.
    Source(&'static str),
    /// The process's limit is reached.
    All(&'static str),
}

impl Exhausted {
    /// Returns a text for people.
    pub(super) fn text(self) -> String {
        match self {
            Self::Source(what) => {
                format!("your identity, address or user has its share of this server's {what}")
            }
            Self::All(what) => format!("this server has no {what} left"),
        }
    }
}

impl UsageTable {
    /// An empty table; the sessions of a source may use this number of bytes.
    pub(super) fn new(session_bytes_per_source_max: usize) -> Self {
        Self { by_source: HashMap::new(), all: Usage::default(), session_bytes_per_source_max }
    }

    /// Returns the connections with links, of a source and in all.
    pub(super) fn linked(&self, source: Source) -> (usize, usize) {
        (self.usage(source).linked, self.all.linked)
    }

    /// Returns the sum over all sources.
    pub(super) fn all(&self) -> Usage {
        self.all
    }

    pub(super) fn sources(&self) -> impl Iterator<Item = (Source, Usage)> + '_ {
        self.by_source.iter().map(|(source, usage)| (*source, *usage))
    }

    fn usage(&self, source: Source) -> Usage {
        self.by_source.get(&source).copied().unwrap_or_default()
    }

    /// Checks that a source may have a further link.
    pub(super) fn check_link(&self, source: Source) -> Result<(), Exhausted> {
        if self.usage(source).links >= LINKS_PER_SOURCE_MAX {
            return Err(Exhausted::Source("links"));
        }
        Ok(())
    }

    /// Checks that a source may have a further session with `slots` slots.
    pub(super) fn check_session(&self, source: Source, slots: u16) -> Result<(), Exhausted> {
        let (usage, bytes) = (self.usage(source), session_bytes(slots));
        if usage.proposals >= PROPOSALS_PER_SOURCE_MAX {
            return Err(Exhausted::Source("unanswered proposals"));
        }
        if usage.session_bytes + bytes > self.session_bytes_per_source_max {
            return Err(Exhausted::Source("memory for sessions"));
        }
        if self.all.session_bytes + bytes > SESSION_BYTES_MAX {
            return Err(Exhausted::All("memory for sessions"));
        }
        Ok(())
    }

    /// Returns the slots beyond the minimum that a source's sessions may still get.
    pub(super) fn slots_left(&self, source: Source) -> u64 {
        let of_source =
            slots_left(self.session_bytes_per_source_max, self.usage(source).session_bytes);
        of_source.min(slots_left(SESSION_BYTES_MAX, self.all.session_bytes))
    }

    /// Adds a link; `is_first`: the connection's first.
    pub(super) fn add_link(&mut self, source: Source, is_first: bool) {
        self.change(source, |usage| {
            usage.links += 1;
            usage.linked += usize::from(is_first);
        });
    }

    /// Removes a link; `was_last`: the connection's last.
    pub(super) fn remove_link(&mut self, source: Source, was_last: bool) {
        self.change(source, |usage| {
            take(&mut usage.links, 1);
            take(&mut usage.linked, usize::from(was_last));
        });
    }

    pub(super) fn add_proposal(&mut self, source: Source, slots: u16) {
        self.change(source, |usage| {
            usage.proposals += 1;
            usage.session_bytes += session_bytes(slots);
        });
    }

    /// Removes a proposal with `slots` slots, answered or ended with its link.
    pub(super) fn remove_proposal(&mut self, source: Source, slots: u16) {
        self.change(source, |usage| {
            take(&mut usage.proposals, 1);
            take(&mut usage.session_bytes, session_bytes(slots));
        });
    }

    pub(super) fn add_sessions(&mut self, source: Source, bytes: usize) {
        self.change(source, |usage| usage.session_bytes += bytes);
    }

    pub(super) fn remove_sessions(&mut self, source: Source, bytes: usize) {
        self.change(source, |usage| take(&mut usage.session_bytes, bytes));
    }

    fn change(&mut self, source: Source, change: impl Fn(&mut Usage)) {
        let usage = self.by_source.entry(source).or_default();
        change(usage);
        let of_source = *usage;
        assert!(
            of_source.linked <= of_source.links,
            "each connection that counts as linked has a link"
        );
        if *usage == Usage::default() {
            self.by_source.remove(&source);
            shrink(&mut self.by_source);
        }
        change(&mut self.all);
        assert!(
            of_source.links <= self.all.links
                && of_source.proposals <= self.all.proposals
                && of_source.session_bytes <= self.all.session_bytes,
            "a source uses no more than all sources together"
        );
    }
}

fn take(from: &mut usize, count: usize) {
    *from = from.checked_sub(count).expect("what is given back was taken");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nexus::limits::SESSION_BYTES_PER_SOURCE_MAX;

    fn source(address: &str) -> Source {
        Source::of(address.parse().unwrap(), None, None)
    }

    #[test]
    fn check_session__keeps_room_for_others() {
        let (greedy, other) = (source("10.0.0.1"), source("10.0.0.2"));
        let mut usage = UsageTable::new(SESSION_BYTES_PER_SOURCE_MAX);
        let bytes = session_bytes(64);
        let mut count = 0;
        while usage.check_session(greedy, 64).is_ok() {
            usage.add_sessions(greedy, bytes);
            count += 1;
        }
        assert_eq!(count, SESSION_BYTES_PER_SOURCE_MAX / bytes);
        assert_eq!(usage.check_session(greedy, 64), Err(Exhausted::Source("memory for sessions")));
        assert_eq!(usage.check_session(other, 64), Ok(()));
        usage.remove_sessions(greedy, bytes);
        assert_eq!(usage.check_session(greedy, 64), Ok(()));
        usage.remove_sessions(greedy, (count - 1) * bytes);
        assert!(usage.by_source.is_empty() && usage.all == Usage::default());
    }

    #[test]
    fn check_session__includes_proposals() {
        let greedy = source("10.0.0.1");
        let mut usage = UsageTable::new(SESSION_BYTES_PER_SOURCE_MAX);
        while usage.check_session(greedy, 1).is_ok() {
            usage.add_proposal(greedy, 1);
        }
        assert!(usage.check_session(greedy, 1).is_err());
        usage.remove_proposal(greedy, 1);
        assert!(usage.check_session(greedy, 1).is_ok());
    }

    #[test]
    fn checks__up_to_the_limits_of_a_source_and_of_all() {
        let one = source("10.0.0.1");
        let mut usage = UsageTable::new(SESSION_BYTES_PER_SOURCE_MAX);
        for link in 0..LINKS_PER_SOURCE_MAX {
            assert_eq!(usage.check_link(one), Ok(()), "link {link}");
            usage.add_link(one, link == 0);
        }
        assert_eq!(usage.check_link(one), Err(Exhausted::Source("links")));
        assert_eq!(usage.check_link(source("10.0.0.2")), Ok(()));
        assert_eq!((usage.linked(one), usage.linked(source("10.0.0.2"))), ((1, 1), (0, 1)));

        for proposal in 0..PROPOSALS_PER_SOURCE_MAX {
            assert_eq!(usage.check_session(one, 1), Ok(()), "proposal {proposal}");
            usage.add_proposal(one, 1);
        }
        assert_eq!(usage.check_session(one, 1), Err(Exhausted::Source("unanswered proposals")));

        let mut usage = UsageTable::new(SESSION_BYTES_PER_SOURCE_MAX);
        let sources: Vec<_> = (0..8).map(|host| source(&format!("10.0.1.{host}"))).collect();
        for (number, source) in sources.iter().enumerate() {
            usage.add_sessions(*source, SESSION_BYTES_PER_SOURCE_MAX - session_bytes(1));
            assert_eq!(usage.check_session(*source, 1), Ok(()));
            assert_eq!(
                usage.check_session(*source, 2),
                Err(Exhausted::Source("memory for sessions"))
            );
            usage.add_sessions(*source, session_bytes(1));
            assert_eq!(usage.all().session_bytes, (number + 1) * SESSION_BYTES_PER_SOURCE_MAX);
        }
        assert_eq!(usage.all().session_bytes, SESSION_BYTES_MAX);
        assert_eq!(usage.check_session(one, 1), Err(Exhausted::All("memory for sessions")));
        usage.remove_sessions(sources[0], session_bytes(1));
        assert_eq!(usage.check_session(one, 1), Ok(()));
        assert_eq!(usage.check_session(one, 2), Err(Exhausted::All("memory for sessions")));
    }

    panics! {
        remove_link__of_none: "what is given back was taken"
            => UsageTable::new(SESSION_BYTES_PER_SOURCE_MAX).remove_link(source("10.0.0.1"), true);
        remove_link__of_the_last_as_one_of_several:
            "each connection that counts as linked has a link" => {
            let mut usage = UsageTable::new(SESSION_BYTES_PER_SOURCE_MAX);
            usage.add_link(source("10.0.0.1"), true);
            usage.remove_link(source("10.0.0.1"), false);
        };
        add_proposal__that_is_missing_in_the_sum:
            "a source uses no more than all sources together" => {
            let mut usage = UsageTable::new(SESSION_BYTES_PER_SOURCE_MAX);
            usage.add_proposal(source("10.0.0.1"), 64);
            usage.all = Usage::default();
            usage.add_proposal(source("10.0.0.1"), 64);
        };
    }
}
