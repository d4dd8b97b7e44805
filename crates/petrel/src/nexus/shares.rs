//! Resources of the process held by peers, per site: no site can exhaust the resources of all.
//!
//! There are no credentials yet: a peer is known by its address alone. Many processes may share an address: all of a
//! host, and on loopback all of the local host. The share of a site is therefore large, and a further rule protects
//! peers at the same address: idle connections yield to new ones (see `listener` and `seats`).

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::limits::{
    LINKS_PER_SITE_MAX, PROPOSALS_PER_SITE_MAX, SESSION_BYTES_MAX, SESSION_BYTES_PER_SITE_MAX,
    session_bytes, shrink, slots_left,
};

/// The location of a peer: an IPv4 address, or an IPv6 network of 64 bits, since a host may use any address in its
/// network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Site(IpAddr);

impl Site {
    /// Returns the site of a peer's address, which is [canonical](super::connection::canonical).
    pub(super) fn of(remote: SocketAddr) -> Self {
        match remote.ip() {
            IpAddr::V4(v4) => Self(v4.into()),
            IpAddr::V6(v6) if v6.is_loopback() => Self(v6.into()),
            IpAddr::V6(v6) => Self(Ipv6Addr::from_bits(v6.to_bits() & !0 << 64).into()),
        }
    }
}

/// The resources held by the peers of a site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    /// Connections with links.
    pub(super) seats: usize,
    pub(super) links: usize,
    /// Unanswered session proposals.
    pub(super) proposals: usize,
    /// Bytes of sessions, including proposed ones.
    pub(super) session_bytes: usize,
}

impl Share {
    pub(super) fn add(&mut self, other: Self) {
        self.seats += other.seats;
        self.links += other.links;
        self.proposals += other.proposals;
        self.session_bytes += other.session_bytes;
    }
}

/// The shares of all sites. Everything added is removed again: the sums cover existing objects.
#[derive(Debug, Default)]
pub(super) struct Shares {
    by_site: HashMap<Site, Share>,
    all: Share,
}

/// Why a site gets no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exhausted {
    /// This address has used its share.
    Site(&'static str),
    /// The process's limit is reached.
    All(&'static str),
}

impl Exhausted {
    /// Returns a text for people.
    pub(super) fn text(self) -> String {
        match self {
            Self::Site(what) => format!("your address has its share of this server's {what}"),
            Self::All(what) => format!("this server has no {what} left"),
        }
    }
}

impl Shares {
    /// Returns the connections with links, of a site and in all.
    pub(super) fn seats(&self, site: Site) -> (usize, usize) {
        (self.share(site).seats, self.all.seats)
    }

    /// Returns the sum over all sites.
    pub(super) fn all(&self) -> Share {
        self.all
    }

    /// Returns the share of each site.
    pub(super) fn sites(&self) -> impl Iterator<Item = (Site, Share)> + '_ {
        self.by_site.iter().map(|(site, share)| (*site, *share))
    }

    fn share(&self, site: Site) -> Share {
        self.by_site.get(&site).copied().unwrap_or_default()
    }

    /// Checks that a site may have a further link.
    pub(super) fn check_link(&self, site: Site) -> Result<(), Exhausted> {
        if self.share(site).links >= LINKS_PER_SITE_MAX {
            return Err(Exhausted::Site("links"));
        }
        Ok(())
    }

    /// Checks that a site may have a further session with `slots` slots.
    pub(super) fn check_session(&self, site: Site, slots: u16) -> Result<(), Exhausted> {
        let (share, bytes) = (self.share(site), session_bytes(slots));
        if share.proposals >= PROPOSALS_PER_SITE_MAX {
            return Err(Exhausted::Site("unanswered proposals"));
        }
        if share.session_bytes + bytes > SESSION_BYTES_PER_SITE_MAX {
            return Err(Exhausted::Site("memory for sessions"));
        }
        if self.all.session_bytes + bytes > SESSION_BYTES_MAX {
            return Err(Exhausted::All("memory for sessions"));
        }
        Ok(())
    }

    /// Returns the slots beyond the minimum that a site's sessions may still get.
    pub(super) fn slots_left(&self, site: Site) -> u64 {
        let of_site = slots_left(SESSION_BYTES_PER_SITE_MAX, self.share(site).session_bytes);
        of_site.min(slots_left(SESSION_BYTES_MAX, self.all.session_bytes))
    }

    /// Adds a link; `is_first`: the connection's first.
    pub(super) fn add_link(&mut self, site: Site, is_first: bool) {
        self.change(site, |share| {
            share.links += 1;
            share.seats += usize::from(is_first);
        });
    }

    /// Removes a link; `was_last`: the connection's last.
    pub(super) fn remove_link(&mut self, site: Site, was_last: bool) {
        self.change(site, |share| {
            take(&mut share.links, 1);
            take(&mut share.seats, usize::from(was_last));
        });
    }

    /// Adds a proposal with this number of slots.
    pub(super) fn add_proposal(&mut self, site: Site, slots: u16) {
        self.change(site, |share| {
            share.proposals += 1;
            share.session_bytes += session_bytes(slots);
        });
    }

    /// Removes a proposal with `slots` slots, answered or ended with its link.
    pub(super) fn remove_proposal(&mut self, site: Site, slots: u16) {
        self.change(site, |share| {
            take(&mut share.proposals, 1);
            take(&mut share.session_bytes, session_bytes(slots));
        });
    }

    /// Adds the bytes of open sessions.
    pub(super) fn add_sessions(&mut self, site: Site, bytes: usize) {
        self.change(site, |share| share.session_bytes += bytes);
    }

    /// Removes the bytes of ended sessions.
    pub(super) fn remove_sessions(&mut self, site: Site, bytes: usize) {
        self.change(site, |share| take(&mut share.session_bytes, bytes));
    }

    fn change(&mut self, site: Site, change: impl Fn(&mut Share)) {
        let share = self.by_site.entry(site).or_default();
        change(share);
        if *share == Share::default() {
            self.by_site.remove(&site);
            shrink(&mut self.by_site);
        }
        change(&mut self.all);
    }
}

fn take(from: &mut usize, count: usize) {
    *from = from.checked_sub(count).expect("what is given back was taken");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(address: &str) -> Site {
        Site::of(SocketAddr::new(address.parse().unwrap(), 1))
    }

    #[test]
    fn site__is_an_address_or_a_network_of_64_bits() {
        assert_ne!(site("10.0.0.1"), site("10.0.0.2"));
        assert_eq!(site("2001:db8::1"), site("2001:db8::2:3:4"));
        assert_ne!(site("2001:db8::1"), site("2001:db8:0:1::1"));
        assert_ne!(site("::1"), site("::2"));
    }

    #[test]
    fn check_session__keeps_room_for_others() {
        let (greedy, other) = (site("10.0.0.1"), site("10.0.0.2"));
        let mut shares = Shares::default();
        let bytes = session_bytes(64);
        let mut count = 0;
        while shares.check_session(greedy, 64).is_ok() {
            shares.add_sessions(greedy, bytes);
            count += 1;
        }
        assert_eq!(count, SESSION_BYTES_PER_SITE_MAX / bytes);
        assert_eq!(shares.check_session(greedy, 64), Err(Exhausted::Site("memory for sessions")));
        assert_eq!(shares.check_session(other, 64), Ok(()));
        shares.remove_sessions(greedy, bytes);
        assert_eq!(shares.check_session(greedy, 64), Ok(()));
        shares.remove_sessions(greedy, (count - 1) * bytes);
        assert!(shares.by_site.is_empty() && shares.all == Share::default());
    }

    #[test]
    fn check_session__counts_what_is_proposed() {
        let greedy = site("10.0.0.1");
        let mut shares = Shares::default();
        while shares.check_session(greedy, 1).is_ok() {
            shares.add_proposal(greedy, 1);
        }
        assert!(shares.check_session(greedy, 1).is_err());
        shares.remove_proposal(greedy, 1);
        assert!(shares.check_session(greedy, 1).is_ok());
    }

    #[test]
    fn checks__up_to_the_limits_of_a_site_and_of_all() {
        let one = site("10.0.0.1");
        let mut shares = Shares::default();
        for link in 0..LINKS_PER_SITE_MAX {
            assert_eq!(shares.check_link(one), Ok(()), "link {link}");
            shares.add_link(one, link == 0);
        }
        assert_eq!(shares.check_link(one), Err(Exhausted::Site("links")));
        assert_eq!(shares.check_link(site("10.0.0.2")), Ok(()));
        assert_eq!((shares.seats(one), shares.seats(site("10.0.0.2"))), ((1, 1), (0, 1)));

        for proposal in 0..PROPOSALS_PER_SITE_MAX {
            assert_eq!(shares.check_session(one, 1), Ok(()), "proposal {proposal}");
            shares.add_proposal(one, 1);
        }
        assert_eq!(shares.check_session(one, 1), Err(Exhausted::Site("unanswered proposals")));

        let mut shares = Shares::default();
        let sites: Vec<_> = (0..8).map(|host| site(&format!("10.0.1.{host}"))).collect();
        for (number, site) in sites.iter().enumerate() {
            shares.add_sessions(*site, SESSION_BYTES_PER_SITE_MAX - session_bytes(1));
            assert_eq!(shares.check_session(*site, 1), Ok(()));
            assert_eq!(shares.check_session(*site, 2), Err(Exhausted::Site("memory for sessions")));
            shares.add_sessions(*site, session_bytes(1));
            assert_eq!(shares.all().session_bytes, (number + 1) * SESSION_BYTES_PER_SITE_MAX);
        }
        assert_eq!(shares.all().session_bytes, SESSION_BYTES_MAX);
        assert_eq!(shares.check_session(one, 1), Err(Exhausted::All("memory for sessions")));
        shares.remove_sessions(sites[0], session_bytes(1));
        assert_eq!(shares.check_session(one, 1), Ok(()));
        assert_eq!(shares.check_session(one, 2), Err(Exhausted::All("memory for sessions")));
    }

    #[test]
    #[should_panic(expected = "what is given back was taken")]
    fn remove_link__of_none() {
        Shares::default().remove_link(site("10.0.0.1"), true);
    }
}
