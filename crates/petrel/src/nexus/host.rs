//! A counter of the host beside those of the process: datagrams without a socket.
//!
//! The socket of a data port with a single peer is connected to the peer. The kernel refuses all other datagrams as at
//! a closed port. The kernel's count (`NoPorts`) includes them beside datagrams to really closed ports. The count is
//! per network namespace, not per socket; no finer count exists.

use std::fs;

/// Datagrams without a socket in the thread's network namespace since its creation; `None` if the kernel does not
/// report them.
pub(super) fn udp_no_ports() -> Option<u64> {
    // The namespace of this thread, not of the process's first thread.
    let v4 = fs::read_to_string("/proc/thread-self/net/snmp").ok();
    let v6 = fs::read_to_string("/proc/thread-self/net/snmp6").ok();
    no_ports(v4.as_deref(), v6.as_deref())
}

/// Returns the sum over both tables; a host without IPv6 lacks the second.
fn no_ports(v4: Option<&str>, v6: Option<&str>) -> Option<u64> {
    let v6 = v6.and_then(no_ports_v6).unwrap_or(0);
    Some(v4.and_then(no_ports_v4)?.wrapping_add(v6))
}

/// Reads `NoPorts` from two lines that begin with `Udp:`, names and values.
fn no_ports_v4(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let place = names.split_whitespace().position(|name| name == "NoPorts")?;
    values.split_whitespace().nth(place)?.parse().ok()
}

/// Reads `Udp6NoPorts` from lines of a name and a value.
fn no_ports_v6(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Udp6NoPorts"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_ports__from_the_kernels_tables() {
        let v4 = "Tcp: A NoPorts\nTcp: 1 2\nUdp: InDatagrams NoPorts InErrors\nUdp: 7 51001 3\n\
                  UdpLite: InDatagrams NoPorts\nUdpLite: 0 9\n";
        assert_eq!(no_ports_v4(v4), Some(51_001));
        assert_eq!(no_ports_v4("Udp: InDatagrams\nUdp: 7\n"), None);
        assert_eq!(no_ports_v4("Udp: NoPorts\n"), None);
        let v6 = "Udp6InDatagrams 1\nUdp6NoPorts                     \t12\n";
        assert_eq!(no_ports_v6(v6), Some(12));
        assert_eq!(no_ports_v6(""), None);
        assert_eq!(no_ports(Some(v4), Some(v6)), Some(51_013));
        assert_eq!(no_ports(Some(v4), None), Some(51_001));
        assert_eq!(no_ports(Some(v4), Some("")), Some(51_001));
        assert_eq!(no_ports(None, Some(v6)), None);
    }
}
