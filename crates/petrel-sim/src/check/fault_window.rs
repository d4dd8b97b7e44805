//! Fault windows: crashes, partitions, pauses, closed sessions and heavy loss, which justify failed calls.

use crate::fabric::{HostId, Stopped};

/// A fault window, in which calls of some hosts may fail.
#[derive(Clone, Copy, Debug)]
struct FaultWindow {
    /// Bit per host.
    hosts: u64,
    from_ns: u64,
    until_ns: u64,
    /// Whether the window is only a drain: no call is lost then, but new calls may be refused.
    is_drain: bool,
}

#[derive(Debug, Default)]
pub(crate) struct FaultWindows {
    all: Vec<FaultWindow>,
    /// Stops of hosts' threads, in the order of their beginning.
    stops: Vec<Stopped>,
    /// The stops of whole hosts.
    pauses: Vec<Stopped>,
    /// How long after its end a fault may still have effects.
    pub(crate) aftermath_ns: u64,
}

impl FaultWindows {
    /// Records a fault window of some hosts.
    pub(crate) fn add(
        &mut self,
        hosts: impl IntoIterator<Item = HostId>,
        from_ns: u64,
        for_ns: u64,
    ) {
        let hosts = hosts.into_iter().fold(0, |bits, HostId(host)| bits | 1 << host);
        let until_ns = from_ns.saturating_add(for_ns).saturating_add(self.aftermath_ns);
        self.all.push(FaultWindow { hosts, from_ns, until_ns, is_drain: false });
    }

    /// Records a stop of a host's threads: a fault window, and the only kind that allows a client to be late.
    pub(crate) fn add_stop(&mut self, stopped: Stopped) {
        self.add([stopped.host], stopped.from_ns, stopped.for_ns);
        self.stops.push(stopped);
    }

    /// Records a stop of all threads of a host.
    pub(crate) fn add_pause(&mut self, stopped: Stopped) {
        self.add_stop(stopped);
        self.pauses.push(stopped);
    }

    /// Returns how long threads of a host were stopped between two times.
    pub(crate) fn stopped_ns(&self, host: HostId, from_ns: u64, until_ns: u64) -> u64 {
        let mut counted_ns = from_ns;
        let mut sum_ns = 0;
        for stop in self.stops.iter().filter(|stop| stop.host == host) {
            let begin_ns = stop.from_ns.max(counted_ns);
            let end_ns = stop.from_ns.saturating_add(stop.for_ns).min(until_ns);
            sum_ns += end_ns.saturating_sub(begin_ns);
            counted_ns = counted_ns.max(end_ns);
        }
        sum_ns
    }

    /// Returns the longest stop of a host's threads that ended after `from_ns`, counted until `until_ns`.
    pub(crate) fn longest_stop_ns(&self, host: HostId, from_ns: u64, until_ns: u64) -> u64 {
        let stops = self.stops.iter().filter(|stop| stop.host == host);
        let ends = stops.map(|stop| (stop.from_ns, self.end_ns(stop)));
        let lasted_ns =
            |(begin_ns, end_ns): (u64, u64)| end_ns.min(until_ns).saturating_sub(begin_ns);
        ends.filter(|&(_, end_ns)| end_ns >= from_ns).map(lasted_ns).max().unwrap_or(0)
    }

    /// Returns when a stopped thread resumes. If the host is paused by then, the stop lasts until the pause ends.
    fn end_ns(&self, stop: &Stopped) -> u64 {
        let end_of = |stop: &Stopped| stop.from_ns.saturating_add(stop.for_ns);
        let mut end_ns = end_of(stop);
        let pauses = || self.pauses.iter().filter(|pause| pause.host == stop.host);
        while let Some(pause) =
            pauses().find(|pause| pause.from_ns <= end_ns && end_of(pause) > end_ns)
        {
            end_ns = end_of(pause);
        }
        end_ns
    }

    /// Records that an endpoint of a host drains, and is then replaced.
    pub(crate) fn add_drain(&mut self, HostId(host): HostId, from_ns: u64, for_ns: u64) {
        let until_ns = from_ns.saturating_add(for_ns).saturating_add(self.aftermath_ns);
        self.all.push(FaultWindow { hosts: 1 << host, from_ns, until_ns, is_drain: true });
    }

    /// Returns true if a host has an endpoint that drains, or has drained.
    pub(crate) fn drains(&self, HostId(host): HostId, from_ns: u64, until_ns: u64) -> bool {
        self.overlapping(1 << host, from_ns, until_ns).any(|window| window.is_drain)
    }

    /// Returns true if a fault window may have made a call between two hosts fail.
    pub(crate) fn justify(&self, hosts: [HostId; 2], from_ns: u64, until_ns: u64) -> bool {
        let bits = hosts.into_iter().fold(0, |bits, HostId(host)| bits | 1u64 << host);
        self.overlapping(bits, from_ns, until_ns).any(|window| !window.is_drain)
    }

    fn overlapping(
        &self,
        hosts: u64,
        from_ns: u64,
        until_ns: u64,
    ) -> impl Iterator<Item = &FaultWindow> {
        self.all.iter().filter(move |window| {
            window.hosts & hosts != 0 && window.from_ns <= until_ns && from_ns <= window.until_ns
        })
    }

    pub(crate) fn count(&self) -> usize {
        self.all.iter().filter(|window| !window.is_drain).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn justify__needs_the_host_and_the_time() {
        let mut fault_windows = FaultWindows { aftermath_ns: 10, ..FaultWindows::default() };
        fault_windows.add([HostId(1)], 100, 50);
        let justify =
            |a, b, from, until| fault_windows.justify([HostId(a), HostId(b)], from, until);
        assert!(justify(0, 1, 90, 100) && justify(1, 2, 160, 170));
        assert!(!justify(0, 2, 100, 150), "another host");
        assert!(!justify(0, 1, 90, 99), "over before");
        assert!(!justify(0, 1, 161, 170), "begun after");
        assert_eq!(fault_windows.count(), 1);
    }

    #[test]
    fn stops__are_summed_up_without_their_overlaps() {
        let mut fault_windows = FaultWindows::default();
        for (host, from_ns, for_ns) in [(1, 100, 50), (1, 120, 50), (2, 100, 500), (1, 300, 10)] {
            fault_windows.add_stop(Stopped { host: HostId(host), from_ns, for_ns });
        }
        let stopped = |from_ns, until_ns| {
            let (host, fault_windows) = (HostId(1), &fault_windows);
            let sum_ns = fault_windows.stopped_ns(host, from_ns, until_ns);
            (sum_ns, fault_windows.longest_stop_ns(host, from_ns, until_ns))
        };
        assert_eq!(stopped(0, 1_000), (80, 50));
        assert_eq!(stopped(160, 305), (15, 50));
        assert_eq!(stopped(171, 305), (5, 5));
        assert_eq!(stopped(171, 300), (0, 0));
        assert!(fault_windows.justify([HostId(0), HostId(1)], 305, 400));
    }

    #[test]
    fn longest_stop_ns__goes_on_with_the_pause_that_its_end_falls_into() {
        let mut fault_windows = FaultWindows::default();
        let stop = |host, from_ns, for_ns| Stopped { host: HostId(host), from_ns, for_ns };
        let longest = |fault_windows: &FaultWindows, from, until| {
            fault_windows.longest_stop_ns(HostId(1), from, until)
        };
        fault_windows.add_stop(stop(1, 100, 50));
        fault_windows.add_stop(stop(1, 130, 10));
        fault_windows.add_pause(stop(1, 150, 50));
        fault_windows.add_pause(stop(2, 190, 500));
        fault_windows.add_pause(stop(1, 200, 40));
        // Another thread of the host stops; the first has resumed by then.
        fault_windows.add_stop(stop(1, 239, 60));
        assert_eq!(longest(&fault_windows, 0, 1_000), 140);
        assert_eq!(longest(&fault_windows, 240, 220), 120);
        assert_eq!(longest(&fault_windows, 241, 1_000), 60);
        assert_eq!(fault_windows.stopped_ns(HostId(1), 0, 1_000), 199);
    }

    #[test]
    fn drains__are_no_reason_to_lose_a_call() {
        let mut fault_windows = FaultWindows::default();
        fault_windows.add_drain(HostId(1), 100, 50);
        assert!(!fault_windows.justify([HostId(0), HostId(1)], 90, 160));
        assert!(
            fault_windows.drains(HostId(1), 90, 100) && !fault_windows.drains(HostId(0), 90, 100)
        );
        assert!(!fault_windows.drains(HostId(1), 151, 160));
        assert_eq!(fault_windows.count(), 0);
    }
}
