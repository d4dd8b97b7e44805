//! The command over devices of DPDK that need no card, in a network of the test's own.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use petrel_netns::ip;
use petrel_skip::{Need, skip};
use petrel_transport::device::dpdk::compile_shim;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{Server, command, finish, petrel, record, stderr, wait_until};
use crate::credentials::{Folder, succeed};
use crate::devices::{TRIAL, counter, other_host, ping, serve};
use crate::own_network::{self, Trial};

/// The arguments of every device here.
const PLAIN: &str = "dpdk:--no-huge --no-pci --no-shconf --no-telemetry";

/// A user without rights.
const NOBODY: &str = "65534";

const LOOPBACK: Trial =
    Trial { what: "network namespaces", script: "echo | unshare --net true", input: "" };

const TAP: Trial = Trial {
    what: "network namespaces and tap devices",
    script: "ip tuntap add tap0 mode tap && ip rule add pref 10 lookup 100",
    input: "",
};

/// Compiles the shim beside the command. Returns false on a host without DPDK.
pub(crate) fn has_shim() -> bool {
    static COMPILED: OnceLock<Result<(), String>> = OnceLock::new();
    let folder = Path::new(env!("CARGO_BIN_EXE_petrel")).parent().unwrap();
    let compiled = COMPILED.get_or_init(|| compile_shim(folder).map(drop));
    compiled.as_ref().map_err(|why| skip(Need::Dpdk, why)).is_ok()
}

/// Runs a test in a network of its own, with the shim.
fn in_own_network(trial: &Trial<'_>, test: &str, inside: impl FnOnce()) {
    if has_shim() {
        own_network::in_own_network(trial, module_path!(), test, inside);
    }
}

/// Two processes of a user without rights, whose ports are joined by memory.
struct Memif {
    folder: Folder,
}

impl Memif {
    fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        // Copies that the user may read.
        let program = Path::new(env!("CARGO_BIN_EXE_petrel"));
        for name in ["petrel", "libpetrel_dpdk.so"] {
            fs::copy(program.with_file_name(name), folder.path(name)).unwrap();
        }
        Self { folder }
    }

    fn command(&self) -> Command {
        let mut command = Command::new("setpriv");
        let user = ["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"];
        command.args(user).arg(self.folder.path("petrel"));
        command
    }

    /// Rings of 512 frames are full now and then.
    fn device(role: &str) -> String {
        format!("{PLAIN} --vdev=net_memif0,role={role},rsize=9!")
    }

    fn serve(&self, listen: &str) -> Server {
        let device = Self::device("server");
        Server::start_by(self.command(), &["--listen", listen, "--device", &device])
    }

    fn ping(&self, server: &str, flags: &[&str]) -> Child {
        let mut command = self.command();
        let device = Self::device("client");
        command.args(["ping", server, "--json", "--transport", "udp", "--device", &device]);
        command.args(flags).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

fn stats(server: &str, name: &str) -> u64 {
    loop {
        let answer = succeed(&["stats", server, "--json"]);
        let stats: Value = record(&answer);
        // An endpoint that is busy for long is left out of an answer.
        if let Some(count) = stats["endpoints"][0]["stats"][name].as_u64() {
            return count;
        }
    }
}

#[test]
fn memif__carries_the_calls_of_a_user_without_rights() {
    in_own_network(&LOOPBACK, "memif__carries_the_calls_of_a_user_without_rights", || {
        let ends = Memif::new("memif");
        let server = ends.serve("127.0.0.2:0");
        // Long enough for most datagrams to go by the device: a client begins by the kernel, until its port is joined.
        let sizes = [
            ("1", "100000", "16"),
            ("1400", "20000", "16"),
            ("100KiB", "2000", "16"),
            ("8MiB", "40", "4"),
        ];
        for (size, count, in_flight) in sizes {
            let by = ["--method", "echo", "--in-flight", in_flight];
            let answer =
                finish(ends.ping(
                    &server.address,
                    &[&by[..], &["--size", size, "--count", count]].concat(),
                ));
            assert!(answer.status.success(), "{answer:?}");
            assert_eq!(record(&answer)["answered"].to_string(), count, "{size}");
        }
        let by_device = stats(&server.address, "rx_device_datagrams");
        let by_kernel = stats(&server.address, "rx_datagrams") - by_device;
        assert!(by_device > 10_000 && by_device > by_kernel, "{by_device} {by_kernel}");
        assert_eq!(stats(&server.address, "device_losses"), 0);
    });
}

#[test]
fn memif__whose_peer_is_killed_ends_all_calls_and_joins_the_next_peer() {
    let test = "memif__whose_peer_is_killed_ends_all_calls_and_joins_the_next_peer";
    in_own_network(&LOOPBACK, test, || {
        let ends = Memif::new("memif_killed");
        let server = ends.serve("127.0.0.2:31000");
        let address = server.address.clone();
        // Clients that are killed in the middle of their calls.
        for _ in 0..6 {
            let before = stats(&address, "rx_device_datagrams");
            let mut client = ends.ping(&address, &["--count", "100000000", "--in-flight", "64"]);
            let now = || stats(&address, "rx_device_datagrams");
            assert!(wait_until(|| now() > before + 2_000), "the calls go by the device");
            client.kill().unwrap();
            client.wait().unwrap();
        }
        // A server that is killed, and one that follows at the same address.
        let client = ends.ping(&address, &["--count", "100000000", "--in-flight", "64"]);
        let before = stats(&address, "requests_received");
        assert!(wait_until(|| stats(&address, "requests_received") > before + 10_000));
        drop(server);
        let server = ends.serve("127.0.0.2:31000");
        kill_process(Pid::from_child(&client), Signal::INT).unwrap();
        let ended = finish(client);
        assert!(ended.status.code().is_some(), "the client ends by itself: {ended:?}");
        // A client begins by the kernel, until its port is joined: few of its calls may be left by then.
        let goes_by_the_device = || {
            let answer = finish(ends.ping(&address, &["--count", "20000", "--in-flight", "16"]));
            assert_eq!(record(&answer)["answered"], 20_000, "{answer:?}");
            stats(&address, "rx_device_datagrams") > 100
        };
        assert!(wait_until(goes_by_the_device), "the calls go by the device");
        drop(server);
    });
}

#[test]
fn af_packet__at_either_end_carries_calls_beside_the_kernel() {
    let test = "af_packet__at_either_end_carries_calls_beside_the_kernel";
    if !has_shim() {
        return;
    }
    own_network::in_own_network(&TRIAL, module_path!(), test, || {
        let host = other_host();
        let on = |interface| format!("{PLAIN} --vdev=net_af_packet0,iface={interface}!");
        let (at_v, at_w, kernel) = (on("v"), on("w"), "kernel".to_owned());
        for (at_server, at_client) in [(&at_w, &kernel), (&kernel, &at_v), (&at_w, &at_v)] {
            let server = serve(&host, &["--insecure", "--device", at_server]);
            let by = ["--transport", "udp", "--method", "echo", "--device", at_client];
            for (size, count) in [("1", 1_000), ("1400", 100), ("100KiB", 10), ("8MiB", 1)] {
                ping(&server, count, &[&by[..], &["--size", size]].concat());
            }
            let by_device = counter(&host, &server, "rx_device_datagrams");
            assert_eq!(by_device > 1_000, at_server != &kernel, "{at_server}: {by_device}");
        }
    });
}

#[test]
fn device__that_is_removed_gives_way_to_the_kernel() {
    let test = "device__that_is_removed_gives_way_to_the_kernel";
    if !has_shim() {
        return;
    }
    own_network::in_own_network(&TRIAL, module_path!(), test, || {
        let host = other_host();
        let there = |command: &str| {
            host.run("ip", &command.split(' ').collect::<Vec<_>>(), "").unwrap();
        };
        // Datagrams have a pair of devices for themselves.
        host.join("v2", "w2").unwrap();
        ip("link set v2 up").unwrap();
        ip("route add 10.84.0.2 dev v2 src 10.84.0.1 table 10").unwrap();
        ip("rule add pref 10 ipproto udp lookup 10").unwrap();
        there("link set w2 up");
        there("route add 10.84.0.1 dev w2 src 10.84.0.2 table 10");
        there("rule add pref 10 ipproto udp lookup 10");
        let device = format!("{PLAIN} --vdev=net_af_packet0,iface=w2!");
        let server = serve(&host, &["--insecure", "--device", &device]);
        let call = ["ping", &server.address, "--json", "--transport", "udp", "--in-flight", "4"];
        let client = command(&[&call[..], &["--count", "20000"]].concat()).spawn().unwrap();
        let by_device = || counter(&host, &server, "rx_device_datagrams");
        assert!(wait_until(|| by_device() > 200), "the calls go by the device");
        there("link del w2");
        ip("rule del pref 10").unwrap();
        there("rule del pref 10");
        let answer = finish(client);
        assert_eq!(record(&answer)["answered"], 20_000, "{answer:?}");
        assert!(wait_until(|| counter(&host, &server, "device_losses") == 1));
    });
}

#[test]
fn tap__carries_calls_of_the_kernels_sockets() {
    in_own_network(&TAP, "tap__carries_calls_of_the_kernels_sockets", || {
        // One host is both ends: datagrams for the server's address leave by the interface, and come back from an own address.
        ip("addr add 10.85.0.2/32 dev lo").unwrap();
        let device = format!("{PLAIN} --vdev=net_tap0,iface=tap0!");
        let server = Server::start(&["--insecure", "--listen", "10.85.0.2:0", "--device", &device]);
        let commands = [
            "addr add 10.85.0.1/24 dev tap0",
            "link set tap0 up",
            "rule del pref 0",
            "rule add pref 100 lookup local",
            "rule add pref 10 to 10.85.0.2 ipproto udp lookup 10",
            "rule add pref 11 to 10.85.0.2 ipproto tcp lookup 11",
            "route add 10.85.0.2 dev tap0 src 10.85.0.1 table 10",
            "route add local 10.85.0.2 dev lo src 10.85.0.1 table 11",
        ];
        commands.iter().for_each(|command| ip(command).unwrap());
        for name in ["accept_local", "rp_filter"] {
            for interface in ["all", "tap0"] {
                let value = if name == "rp_filter" { "0" } else { "1" };
                fs::write(format!("/proc/sys/net/ipv4/conf/{interface}/{name}"), value).unwrap();
            }
        }
        for (size, count) in [("1", 2_000), ("1400", 200), ("100KiB", 50), ("8MiB", 2)] {
            ping(&server, count, &["--transport", "udp", "--method", "echo", "--size", size]);
        }
        // Counters are for callers from the server's own address.
        ip("rule del pref 11").unwrap();
        // The port judges checksums, and completes them: the kernel has taken the replies.
        assert_eq!(stats(&server.address, "rx_dropped_checksum"), 0);
        let by_device = stats(&server.address, "rx_device_datagrams");
        assert!(by_device > 2_000, "{by_device}");
    });
}

#[test]
fn device__without_the_shim_or_with_wrong_arguments_is_refused_in_one_line() {
    let test = "device__without_the_shim_or_with_wrong_arguments_is_refused_in_one_line";
    own_network::in_own_network(&LOOPBACK, module_path!(), test, || {
        let folder = Folder::new("no_shim");
        let program = folder.path("petrel");
        fs::copy(env!("CARGO_BIN_EXE_petrel"), &program).unwrap();
        let server = Server::start(&["--listen", "127.0.0.2:0"]);
        let device = format!("{PLAIN} --vdev=net_ring0!");
        let call = ["ping", &server.address, "--count", "10", "--transport", "udp", "--device"];
        // The folders of the test program may hold the library.
        let mut ping = Command::new(&program);
        let refused = ping.args(call).arg(&device).env_remove("LD_LIBRARY_PATH").output().unwrap();
        let said = stderr(&refused).to_owned();
        assert!(!refused.status.success() && said.lines().count() == 1, "{said}");
        assert!(
            said.contains("cannot use the device") && said.contains("`petrel dpdk-shim --out ")
        );
        if has_shim() {
            let by = |device: &str| stderr(&petrel(&[&call[..], &[device]].concat())).to_owned();
            let none = by(&format!("{PLAIN}!"));
            assert!(none.contains("DPDK finds no device by"), "{none}");
            let wrong = by("dpdk:--no-such-argument!");
            assert!(wrong.contains("DPDK does not start with `--no-such-argument`"), "{wrong}");
            let doctor = finish(command(&["doctor", "--device", &device]).spawn().unwrap());
            let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
            assert!(said.contains("net_ring0 of DPDK"), "{said}");
        }
    });
}
