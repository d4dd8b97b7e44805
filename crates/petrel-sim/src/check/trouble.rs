//! What justifies that a call fails: crashes, partitions, pauses, closed sessions, heavy loss.

use crate::fabric::HostId;

/// Something that may make calls of some hosts fail.
#[derive(Clone, Copy, Debug)]
struct Trouble {
    /// Bit per host.
    hosts: u64,
    from_ns: u64,
    until_ns: u64,
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
        self.all.push(Trouble { hosts, from_ns, until_ns });
    }

    /// Whether a call between two hosts may have failed because of a trouble.
    pub(super) fn justify(&self, hosts: [HostId; 2], from_ns: u64, until_ns: u64) -> bool {
        let bits = hosts.into_iter().fold(0, |bits, HostId(host)| bits | 1u64 << host);
        self.all.iter().any(|trouble| {
            trouble.hosts & bits != 0 && trouble.from_ns <= until_ns && from_ns <= trouble.until_ns
        })
    }

    pub(super) fn count(&self) -> usize {
        self.all.len()
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
}
