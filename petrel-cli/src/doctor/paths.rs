//! Equal-cost paths: whether this host's own routes choose a path by the ports of UDP (`docs/wire-protocol.md` §14).
//! The switches of the network decide for themselves, invisibly from here.

use std::process::Command;

use super::check::Check;
use super::host::read_number;

const AREA: &str = "udp";
const NAME: &str = "udp-paths";

const POLICY: &str = "/proc/sys/net/ipv4/fib_multipath_hash_policy";

pub(super) fn check() -> Check {
    judge(next_hops(), read_number(POLICY))
}

/// Returns the largest number of next hops of an IPv4 route; `None` if the routes cannot be listed.
fn next_hops() -> Option<usize> {
    // /proc/net/route lists one next hop of each route.
    let listed = Command::new("ip").args(["-4", "-o", "route", "show"]).output().ok()?;
    listed.status.success().then(|| most_next_hops(&String::from_utf8_lossy(&listed.stdout)))
}

/// Returns the largest number of next hops among routes, each on one line.
fn most_next_hops(routes: &str) -> usize {
    let hops = |route: &str| {
        let count = route.split_ascii_whitespace().filter(|word| *word == "nexthop").count();
        count.max(1)
    };
    routes.lines().map(hops).max().unwrap_or(0)
}

/// Judges by the kernel's numbers of `fib_multipath_hash_policy`: 0 hashes addresses, 1 also ports.
fn judge(next_hops: Option<usize>, policy: Option<u32>) -> Check {
    let elsewhere = "whether the switches choose by ports is not visible from here";
    let by = match policy {
        Some(0) => "addresses alone",
        Some(1) => "addresses and ports",
        Some(2) => "addresses of tunnelled packets",
        Some(3) => "the fields of net.ipv4.fib_multipath_hash_fields",
        Some(_) | None => "an unknown rule",
    };
    match (next_hops, policy) {
        (None, _) => Check::info(AREA, NAME, "unknown: `ip route` does not run here"),
        (Some(0 | 1), _) => Check::info(
            AREA,
            NAME,
            format!("one next hop for each route of this host; {elsewhere}"),
        ),
        (Some(hops), Some(1)) => {
            Check::ok(AREA, NAME, format!("up to {hops} next hops, chosen by {by}; {elsewhere}"))
        }
        (Some(hops), _) => Check::warn(
            AREA,
            NAME,
            format!("up to {hops} next hops, chosen by {by}; {elsewhere}"),
            "Several source ports of one session then share a next hop. Let ports choose: `sudo sysctl -w \
             net.ipv4.fib_multipath_hash_policy=1`.",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::Status;
    use super::*;

    #[test]
    fn most_next_hops__of_routes_with_and_without_several() {
        let routes = "default via 10.0.0.1 dev eth0 \n10.1.0.0/16 proto static \\\tnexthop via 10.0.1.1 \
                      dev eth1 weight 1 \\\tnexthop via 10.0.2.1 dev eth2 weight 1 \n";
        assert_eq!(most_next_hops(routes), 2);
        assert_eq!(most_next_hops("default via 10.0.0.1 dev eth0\n"), 1);
        assert_eq!(most_next_hops(""), 0);
    }

    #[test]
    fn judge__warns_if_ports_choose_no_next_hop() {
        for (hops, policy, status) in [
            (None, Some(1), Status::Info),
            (Some(0), Some(0), Status::Info),
            (Some(1), Some(0), Status::Info),
            (Some(4), Some(1), Status::Ok),
            (Some(4), Some(0), Status::Warn),
            (Some(4), Some(3), Status::Warn),
            (Some(4), None, Status::Warn),
        ] {
            assert_eq!(judge(hops, policy).status, status, "{hops:?} {policy:?}");
        }
    }
}
