//! What justifies that a call fails: crashes, partitions, pauses, closed sessions, heavy loss.

use crate::fabric::HostId;

/// Something that may make calls of some hosts fail.
#[derive(Clone, Copy, Debug)]
struct Trouble {
    /// Bit per host.
    hosts: u64,
    from_ns: u64,
    until_ns: u64,
    /// Whether it is only that an endpoint drains: no call is lost then, but further ones may not be taken.
    is_drain: bool,
}

/// Everything that went wrong in a run, on purpose.
#[derive(Debug, Default)]
pub(super) struct Troubles {
    all: Vec<Trouble>,
    /// How long after its end a trouble may still be felt.
    pub(super) aftermath_ns: u64,
}

impl Troubles {
    /// Notes a trouble of some hosts.
    pub(super) fn add(
        &mut self,
        hosts: impl IntoIterator<Item = HostId>,
        from_ns: u64,
        for_ns: u64,
    ) {
        let hosts = hosts.into_iter().fold(0, |bits, HostId(host)| bits | 1 << host);
        let until_ns = from_ns.saturating_add(for_ns).saturating_add(self.aftermath_ns);
        self.all.push(Trouble { hosts, from_ns, until_ns, is_drain: false });
    }

    /// Notes that an endpoint of a host drains, and is replaced then.
    pub(super) fn add_drain(&mut self, HostId(host): HostId, from_ns: u64, for_ns: u64) {
        let until_ns = from_ns.saturating_add(for_ns).saturating_add(self.aftermath_ns);
        self.all.push(Trouble { hosts: 1 << host, from_ns, until_ns, is_drain: true });
    }

    /// Whether a host has an endpoint that drains, or has drained.
    pub(super) fn drains(&self, HostId(host): HostId, from_ns: u64, until_ns: u64) -> bool {
        self.meet(1 << host, from_ns, until_ns).any(|trouble| trouble.is_drain)
    }

    /// Whether a call between two hosts may have failed because of a trouble.
    pub(super) fn justify(&self, hosts: [HostId; 2], from_ns: u64, until_ns: u64) -> bool {
        let bits = hosts.into_iter().fold(0, |bits, HostId(host)| bits | 1u64 << host);
        self.meet(bits, from_ns, until_ns).any(|trouble| !trouble.is_drain)
    }

    fn meet(&self, hosts: u64, from_ns: u64, until_ns: u64) -> impl Iterator<Item = &Trouble> {
        self.all.iter().filter(move |trouble| {
            trouble.hosts & hosts != 0 && trouble.from_ns <= until_ns && from_ns <= trouble.until_ns
        })
    }

    pub(super) fn count(&self) -> usize {
        self.all.iter().filter(|trouble| !trouble.is_drain).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn justify__needs_the_host_and_the_time() {
        let mut troubles = Troubles { aftermath_ns: 10, ..Troubles::default() };
        troubles.add([HostId(1)], 100, 50);
        let justify = |a, b, from, until| troubles.justify([HostId(a), HostId(b)], from, until);
        assert!(justify(0, 1, 90, 100) && justify(1, 2, 160, 170));
        assert!(!justify(0, 2, 100, 150), "another host");
        assert!(!justify(0, 1, 90, 99), "over before");
        assert!(!justify(0, 1, 161, 170), "begun after");
        assert_eq!(troubles.count(), 1);
    }

    #[test]
    fn drains__are_no_reason_to_lose_a_call() {
        let mut troubles = Troubles::default();
        troubles.add_drain(HostId(1), 100, 50);
        assert!(!troubles.justify([HostId(0), HostId(1)], 90, 160));
        assert!(troubles.drains(HostId(1), 90, 100) && !troubles.drains(HostId(0), 90, 100));
        assert!(!troubles.drains(HostId(1), 151, 160));
        assert_eq!(troubles.count(), 0);
    }
}
