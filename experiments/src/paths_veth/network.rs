//! Two network namespaces joined by four links, among which the kernel chooses by a hash of ports.
//!
//! A token bucket bounds each link; the devices carry a packet per datagram. Rules of nftables drop packets at their
//! arrival: some at random, as by a bad link, or all, as by a link that is dead without notice. The rules see the
//! control plane's packets too, but random losses are those of UDP alone.

use petrel_command::failure::Failure;

use petrel_bench::measure::server_thread::ServerThread;
use petrel_bench::measure::test_bed::{Cores, TestBed};

pub(super) const LINKS: usize = 4;

/// Rate of a link, small enough for two busy CPUs.
pub(super) const LINK_MBIT: u64 = 100;

/// The queue of a link holds all packets that a session may have in flight.
const QUEUE_BYTES: u32 = 600_000;

/// The table's name, used only in the command's namespaces.
const TABLE: &str = "petrel_paths";

/// One of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostEnd {
    Client,
    Server,
}

/// The state of the links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Links {
    /// Loss of UDP packets in either direction, in parts per million, by link.
    pub(super) loss_ppm: [u32; LINKS],
    /// Whether packets of TCP are lost in place of those of UDP.
    pub(super) is_tcp: bool,
    /// Links that are dead without notice.
    pub(super) silent: [bool; LINKS],
}

impl HostEnd {
    fn device(self, link: usize) -> String {
        match self {
            Self::Client => format!("petrel{link}"),
            Self::Server => format!("petrel{link}s"),
        }
    }

    fn other(self) -> Self {
        if self == Self::Client { Self::Server } else { Self::Client }
    }

    const fn number(self) -> u8 {
        match self {
            Self::Client => 1,
            Self::Server => 2,
        }
    }

    pub(super) const fn address(self) -> [u8; 4] {
        [10, 99, 0, self.number()]
    }

    fn text(self) -> String {
        let [a, b, c, d] = self.address();
        format!("{a}.{b}.{c}.{d}")
    }

    /// Sets up the thread's namespace with existing devices.
    fn set_up(self) -> Result<(), petrel_netns::Error> {
        let ip = |arguments: String| petrel_netns::ip(&arguments);
        ip("link set lo up".to_owned())?;
        ip(format!("address add {}/32 dev lo", self.text()))?;
        let mut hops = String::new();
        for link in 0..LINKS {
            let device = self.device(link);
            petrel_netns::switch_off_offloads(&device)?;
            petrel_netns::bring_up(&device, [10, 99, 1 + link as u8, self.number()].into())?;
            let bucket = format!(
                "qdisc add dev {device} root tbf rate {LINK_MBIT}mbit burst 16kb limit {QUEUE_BYTES}"
            );
            let arguments: Vec<&str> = bucket.split(' ').collect();
            petrel_netns::run("tc", &arguments, "")?;
            let (number, other) = (link + 1, self.other().number());
            hops += &format!(" nexthop via 10.99.{number}.{other} dev {device}");
        }
        ip(format!("route add {}/32 src {}{hops}", self.other().text(), self.text()))
    }

    /// Returns rules that replace the former ones in a single transaction.
    fn rules(self, links: Links) -> String {
        let mut rules = String::new();
        let protocol = if links.is_tcp { "tcp" } else { "udp" };
        for (link, (&ppm, &is_silent)) in links.loss_ppm.iter().zip(&links.silent).enumerate() {
            let device = self.device(link);
            if is_silent {
                rules += &format!("iifname \"{device}\" counter name dropped drop; ");
            } else if ppm > 0 {
                rules += &format!(
                    "iifname \"{device}\" meta l4proto {protocol} numgen random mod 1000000 < {ppm} counter name dropped \
                     drop; "
                );
            }
        }
        format!(
            "table ip {TABLE} {{ }}; delete table ip {TABLE}; table ip {TABLE} {{ counter dropped {{ }}; \
             chain arriving {{ type filter hook prerouting priority raw; {rules}}}; }};"
        )
    }
}

/// Switches this thread's namespace to the choice of links by ports, also when links are down.
fn choose_by_ports() -> Result<(), Failure> {
    for (setting, value) in [
        ("fib_multipath_hash_policy", "1"),
        ("conf/all/ignore_routes_with_linkdown", "1"),
        ("conf/all/rp_filter", "0"),
        ("conf/default/rp_filter", "0"),
    ] {
        let path = format!("/proc/sys/net/ipv4/{setting}");
        std::fs::write(&path, value)
            .map_err(|error| Failure::because(format!("{path} cannot be written: {error}")))?;
    }
    Ok(())
}

/// Creates and joins the two namespaces; the calling thread is in the first, the test bed's second thread in the second.
pub(super) fn set_up(is_realtime: bool) -> Result<TestBed, Failure> {
    petrel_netns::leave().map_err(Failure::because)?;
    let server_thread = ServerThread::start()?;
    let thread = server_thread.execute(|| {
        petrel_netns::leave().map_err(Failure::because)?;
        Ok(rustix::thread::gettid().as_raw_nonzero().to_string())
    })?;
    for link in 0..LINKS {
        let [here, there] = [HostEnd::Client, HostEnd::Server].map(|end| end.device(link));
        let pair = format!("link add {here} type veth peer name {there} netns {thread}");
        petrel_netns::ip(&pair).map_err(Failure::because)?;
    }
    let set_up_end = |end: HostEnd| {
        choose_by_ports()?;
        end.set_up().map_err(Failure::because)
    };
    set_up_end(HostEnd::Client)?;
    server_thread.execute(move || set_up_end(HostEnd::Server))?;
    let addresses = [HostEnd::Client, HostEnd::Server].map(|end| end.address().into());
    let test_bed = TestBed::with(Cores::Two, is_realtime, Some(server_thread), addresses)?;
    // If rules cannot be set, the measurement fails before anything else starts.
    set_links(&test_bed, Links::default())?;
    Ok(test_bed)
}

/// Sets losses and silent cuts at both ends.
pub(super) fn set_links(test_bed: &TestBed, links: Links) -> Result<(), Failure> {
    let failed = |error| {
        let text = format!("packets cannot be thrown away (is nftables installed?): {error}");
        Failure::because(text)
    };
    let at = move |end: HostEnd| petrel_netns::nft(&end.rules(links)).map_err(failed);
    at(HostEnd::Client)?;
    test_bed.in_server_thread(move || at(HostEnd::Server))
}

/// Lets MPTCP connections of this thread's namespace have a subflow over each link.
pub(super) fn allow_subflows(end: HostEnd) -> Result<(), Failure> {
    let ip = |arguments: &str| petrel_netns::ip(arguments).map_err(Failure::because);
    ip("mptcp limits set subflows 8 add_addr_accepted 8")?;
    // The former ones, of an earlier connection.
    ip("mptcp endpoint flush")?;
    if end == HostEnd::Client {
        for link in 0..LINKS {
            let (number, device) = (link + 1, end.device(link));
            ip(&format!("mptcp endpoint add 10.99.{number}.1 dev {device} subflow"))?;
        }
    }
    Ok(())
}

/// Takes a link down, or up again: both ends notice.
pub(super) fn set_up_link(link: usize, is_up: bool) -> Result<(), Failure> {
    let state = if is_up { "up" } else { "down" };
    let device = HostEnd::Client.device(link);
    petrel_netns::ip(&format!("link set {device} {state}")).map_err(Failure::because)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules__drop_what_the_links_say() {
        let none = HostEnd::Client.rules(Links::default());
        assert!(!none.contains("drop;"), "{none}");
        let links = Links {
            loss_ppm: [0, 5_000, 0, 0],
            silent: [true, false, false, false],
            is_tcp: false,
        };
        let rules = HostEnd::Server.rules(links);
        assert!(rules.contains("iifname \"petrel0s\" counter name dropped drop;"), "{rules}");
        assert!(rules.contains("\"petrel1s\" meta l4proto udp numgen random mod 1000000 < 5000"));
        assert_eq!(rules.matches("drop;").count(), 2);
    }
}
