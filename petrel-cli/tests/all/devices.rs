//! The command past the kernel (`--device`): two hosts in network namespaces, with a device at both ends, at either, and at none.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use petrel_netns::{Host, bring_up, ip, switch_off_checksums, switch_off_offloads};
use rustix::process::Signal;
use serde_json::Value;

use crate::common::{Killed, Server, command, finish, petrel, record, stderr, wait_until};
use crate::credentials::{Folder, succeed};
use crate::device_calls::times;
use crate::own_network::{self, Trial};

/// The addresses of the two hosts.
pub(crate) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 84, 0, 1);
pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 84, 0, 2);

pub(crate) const TRIAL: Trial = Trial {
    what: "network namespaces and AF_XDP",
    // Programs of BPF need the rights of the machine's own users.
    script: "echo | unshare --net true && ip link add v type veth peer name w && grep -q 4294967295 /proc/self/uid_map",
    input: "",
};

const ENDS: [(&str, &str); 4] =
    [("kernel", "kernel"), ("kernel", "xdp!"), ("xdp!", "kernel"), ("xdp!", "xdp!")];

/// Returns a host that is joined with this namespace.
pub(crate) fn other_host() -> Host {
    let host = Host::new().unwrap();
    host.join("v", "w").unwrap();
    bring_up("v", CLIENT).unwrap();
    host.bring_up("w", SERVER).unwrap();
    host
}

pub(crate) fn serve(host: &Host, flags: &[&str]) -> Server {
    let program = Path::new(env!("CARGO_BIN_EXE_petrel"));
    let listen = format!("{SERVER}:0");
    Server::start_by(host.command(program), &[&["--listen", &listen][..], flags].concat())
}

/// Returns a counter of the server's first endpoint, asked on its host.
pub(crate) fn counter(host: &Host, server: &Server, name: &str) -> u64 {
    counter_at(host, &server.address, name, &[])
}

pub(crate) fn counter_at(host: &Host, address: &str, name: &str, flags: &[&str]) -> u64 {
    let arguments = [&["stats", address, "--json", "--timeout", "60s"][..], flags].concat();
    loop {
        let stats = host.run(env!("CARGO_BIN_EXE_petrel"), &arguments, "").unwrap();
        let stats: Value = serde_json::from_str(stats.trim()).unwrap();
        // An endpoint that is busy for long is left out of an answer.
        if let Some(count) = stats["endpoints"][0]["stats"][name].as_u64() {
            return count;
        }
    }
}

/// Starts a service, and waits until it is ready.
fn start_service(host: &Host, service: &str, flags: &[&str]) -> Killed {
    let mut command = host.command(Path::new(env!("CARGO_BIN_EXE_petrel")));
    Killed::start(command.args([service, "serve", "--idle", "block"]).args(flags), "address")
}

/// Makes calls; all must be answered, with the right bytes. Returns their latencies.
pub(crate) fn ping(server: &Server, count: u64, flags: &[&str]) -> Value {
    let count = count.to_string();
    let call = ["ping", &server.address, "--json", "--count", &count];
    let mut answer = record(&succeed(&[&call[..], flags].concat()));
    assert_eq!(answer["answered"].to_string(), count, "{flags:?}");
    answer["latency"].take()
}

#[test]
fn devices__at_any_end_carry_the_same_calls() {
    let test = "devices__at_any_end_carry_the_same_calls";
    own_network::in_own_network(&TRIAL, module_path!(), test, || {
        let host = other_host();
        for with_offloads in [true, false] {
            if !with_offloads {
                let switch_off = |device: &str| {
                    switch_off_offloads(device).unwrap();
                    switch_off_checksums(device).unwrap();
                };
                switch_off("v");
                host.spawn(move || switch_off("w")).join().unwrap();
            }
            for (at_server, at_client) in ENDS {
                let server = serve(&host, &["--insecure", "--device", at_server]);
                let by = ["--transport", "udp", "--device", at_client];
                let small = ["--method", "echo", "--in-flight", "16"];
                for (size, count, how) in [
                    ("1", 2_000, &small[..]),
                    ("1400", 200, &[]),
                    ("100KiB", 50, &[]),
                    ("8MiB", 4, &[]),
                ] {
                    let flags = [&by[..], how, &["--size", size]].concat();
                    let latency = ping(&server, count * times(), &flags);
                    let [slow, p50, max] =
                        ["above_twice_p50", "p50_ns", "max_ns"].map(|name| &latency[name]);
                    println!(
                        "{at_client} to {at_server}, offloads {with_offloads}, {size} B: {slow} of {} calls above twice the p50 of {p50} ns; the longest {max} ns",
                        latency["count"]
                    );
                }
                let by_device = counter(&host, &server, "rx_device_datagrams");
                let all = counter(&host, &server, "rx_datagrams");
                let ends = (at_server, at_client, with_offloads);
                match ends {
                    ("kernel", ..) => assert_eq!(by_device, 0),
                    // Without offloads of the sender, packets are no larger than the device takes.
                    (_, "xdp!", _) | (_, _, false) => assert!(2 * by_device > all, "{ends:?}"),
                    _ => assert!(by_device > 2_000, "{ends:?}"),
                }
                assert_eq!(counter(&host, &server, "rx_dropped_checksum"), 0, "{ends:?}");
            }
        }
    });
}

#[test]
fn devices__carry_sealed_calls_and_services() {
    let test = "devices__carry_sealed_calls_and_services";
    own_network::in_own_network(&TRIAL, module_path!(), test, || {
        let host = other_host();
        let folder = Folder::new("devices");
        let [authority, own, client] =
            ["authority", "server", "client"].map(|name| folder.path(name));
        succeed(&["cert", "ca", "--out", &authority]);
        succeed(&["cert", "issue", &SERVER.to_string(), "--ca", &authority, "--out", &own]);
        succeed(&["cert", "issue", "client", "--ca", &authority, "--out", &client]);
        let server = serve(&host, &["--credentials", &own, "--device", "xdp!"]);
        for device in ["xdp!", "kernel"] {
            let by = ["--transport", "udp", "--credentials", &client, "--device", device];
            ping(&server, 500, &by);
            ping(&server, 2, &[&by[..], &["--size", "8MiB"]].concat());
        }
        let by_device =
            counter_at(&host, &server.address, "rx_device_datagrams", &["--credentials", &own]);
        assert!(by_device > 1_000, "{by_device}");
        // Without a helper, an interface has the program of one process.
        drop(server);

        let services: [(&str, &[&str], &[&str]); 3] = [
            ("cache", &["set", "key", "17"], &["get", "key"]),
            ("index", &["put", "5", "17"], &["get", "5"]),
            ("kv", &["put", "key", "17"], &["get", "key"]),
        ];
        let (data, port) = (folder.path("replica"), "10.84.0.2:31999");
        let peers = format!("1={port}");
        for (service, write, read) in services {
            let listen: &[&str] = match service {
                "kv" => &["--id", "1", "--peers", &peers, "--data", &data],
                _ => &["--listen", port],
            };
            let secured = ["--json", "--credentials", &own, "--device", "xdp!"];
            let _service = start_service(&host, service, &[listen, &secured].concat());
            for what in [write, read] {
                let (what, rest) = what.split_first().unwrap();
                let at: &[&str] = match service {
                    "kv" => &[service, what, "--servers", port],
                    _ => &[service, what, port],
                };
                let by = ["--credentials", &client, "--device", "xdp!"];
                let answer = succeed(&[at, rest, &by].concat());
                let is_read = *what == "get";
                let said = String::from_utf8_lossy(&answer.stdout).into_owned();
                assert!(!is_read || said.contains("17"), "{service}: {said}");
            }
            let by_device =
                counter_at(&host, port, "rx_device_datagrams", &["--credentials", &own]);
            assert!(by_device > 0, "{service}");
        }
    });
}

/// Starts a helper, and waits until it is ready.
pub(crate) fn start_helper(mut command: Command, interface: &str, socket: &str) -> Killed {
    command.args(["xdp-helper", "--json", "--interface", interface, "--socket", socket]);
    Killed::start(command.args(["--allow", USER]), "ready")
}

/// The user of the programs with a helper.
pub(crate) const USER: &str = "65534";

#[test]
fn devices__of_users_without_rights_work_by_a_helper_and_without_it_by_the_kernel() {
    let test = "devices__of_users_without_rights_work_by_a_helper_and_without_it_by_the_kernel";
    own_network::in_own_network(&TRIAL, module_path!(), test, || {
        let host = other_host();
        let folder = Folder::new("helper");
        // A copy that the user may read.
        let program = folder.path("petrel");
        fs::copy(env!("CARGO_BIN_EXE_petrel"), &program).unwrap();
        let [here, there] = ["here", "there"].map(|name| folder.path(name));
        let at_server = start_helper(host.command(Path::new(&program)), "w", &there);
        let at_client = start_helper(Command::new(&program), "v", &here);
        // The helpers' sockets are for all users, and the helpers look who asks.
        let [by_server, by_client] = [&there, &here].map(|socket| format!("xdp@{socket}!"));

        let mut command = Command::new("nsenter");
        let id = host.id().to_string();
        command
            .args(["--target", &id, "--net", "--setuid", USER, "--setgid", USER, "--", &program]);
        let listen = format!("{SERVER}:0");
        let flags = ["--listen", &listen, "--insecure", "--device", &by_server];
        let server = Server::start_by(command, &flags);
        let start = |count: &str| {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", USER, "--regid", USER, "--clear-groups", &program, "ping"]);
            command.args([&server.address, "--json", "--count", count, "--device", &by_client]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let answer = finish(start("1000"));
        assert!(answer.status.success(), "{answer:?}");
        assert!(counter(&host, &server, "rx_device_datagrams") >= 1_000);

        let client = start("50000");
        let requests = || counter(&host, &server, "requests_received");
        assert!(wait_until(|| requests() > 5_000), "the calls go on");
        drop((at_server, at_client));
        let answer = finish(client);
        assert!(answer.status.success(), "{answer:?}");
        assert_eq!(record(&answer)["answered"], 50_000);
        assert!(wait_until(|| counter(&host, &server, "device_losses") == 1));
    });
}

#[test]
fn helper__removes_its_socket_at_a_signal_and_follows_one_that_did_not() {
    let test = "helper__removes_its_socket_at_a_signal_and_follows_one_that_did_not";
    own_network::in_own_network(&TRIAL, module_path!(), test, || {
        let _host = other_host();
        let folder = Folder::new("helper_signal");
        let socket = folder.path("socket");
        let start = || start_helper(Command::new(env!("CARGO_BIN_EXE_petrel")), "v", &socket);
        for signal in [Signal::INT, Signal::TERM] {
            // A killed helper leaves the socket behind.
            drop(start());
            assert!(Path::new(&socket).exists());
            let mut helper = start();
            helper.signal(signal);
            assert!(helper.0.wait().unwrap().success(), "{signal:?}");
            assert!(!Path::new(&socket).exists(), "{signal:?}");
        }
    });
}

#[test]
fn devices__that_lose_their_link_for_a_moment_lose_no_call() {
    let test = "devices__that_lose_their_link_for_a_moment_lose_no_call";
    own_network::in_own_network(&TRIAL, module_path!(), test, || {
        let host = other_host();
        let server = serve(&host, &["--insecure", "--device", "xdp!"]);
        let call = ["ping", &server.address, "--json", "--device", "xdp!", "--in-flight", "4"];
        let client = command(&[&call[..], &["--count", "100000"]].concat()).spawn().unwrap();
        for round in 1..4 {
            let requests = || counter(&host, &server, "requests_received");
            assert!(wait_until(|| requests() > round * 2_000), "the calls go on");
            ip("link set v down").unwrap();
            thread::sleep(Duration::from_millis(100));
            ip("link set v up").unwrap();
        }
        let answer = finish(client);
        assert!(answer.status.success(), "{answer:?}");
        assert_eq!(record(&answer)["answered"], 100_000);
    });
}

#[test]
fn verbs__without_a_card_is_refused_in_one_line_or_gives_way() {
    let server = Server::start(&["--listen", "127.0.0.1:0"]);
    let ping = |flags: &str| {
        let call = ["ping", &server.address, "--count", "10", "--log", "warn"];
        petrel(&[&call[..], &flags.split(' ').collect::<Vec<_>>()].concat())
    };
    for (flags, expected) in [
        ("--device verbs:no-such-card!", ["rdma-core", "no RDMA card no-such-card"]),
        (
            "--device verbs:no-such-card --transport verbs",
            ["rdma-core", "no RDMA card no-such-card"],
        ),
        ("--device verbs! --transport udp", ["allow verbs"; 2]),
        ("--transport verbs", ["--device verbs"; 2]),
    ] {
        let refused = ping(flags);
        let said = stderr(&refused).lines().last().unwrap_or_default().to_owned();
        assert!(!refused.status.success(), "{flags}");
        assert!(expected.iter().any(|text| said.contains(text)), "{flags}: {said}");
    }
    let answer = ping("--device verbs:no-such-card --transport auto");
    assert!(answer.status.success() && stderr(&answer).contains("device_off"), "{answer:?}");
}

#[test]
fn device__that_cannot_be_had_is_a_warning_or_a_refusal() {
    let test = "device__that_cannot_be_had_is_a_warning_or_a_refusal";
    own_network::in_own_network(&TRIAL, module_path!(), test, || {
        let host = other_host();
        let server = serve(&host, &["--insecure", "--device", "xdp:none"]);
        let by = |device| {
            ["ping", &server.address, "--count", "10", "--device", device, "--log", "warn"]
        };
        let answer = succeed(&by("xdp:none"));
        let said = String::from_utf8_lossy(&answer.stderr).into_owned();
        assert!(said.contains("device_off") && said.contains("none"), "{said}");
        let refused = finish(command(&by("xdp:none!")).spawn().unwrap());
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains("cannot use the device"), "{said}");
        for words in [&["sim", "--seeds", "1"][..], &["bench", "stream"], &["kv", "sim"]] {
            let unused = petrel(&[words, &["--device", "xdp"]].concat());
            assert!(stderr(&unused).contains("uses no device"), "{}", stderr(&unused));
        }
    });
}
