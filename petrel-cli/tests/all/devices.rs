//! The command past the kernel (`--device`): two hosts in network namespaces, with a device at both ends, at either, and at none.

use std::net::Ipv4Addr;
use std::path::Path;
use std::thread;
use std::time::Duration;

use petrel_netns::{Host, bring_up, ip, switch_off_checksums, switch_off_offloads};
use serde_json::Value;

use crate::common::{Server, command, finish, record, wait_until};
use crate::credentials::{Folder, succeed};
use crate::own_network::{self, Trial};

const SERVER: &str = "10.84.0.2";

const TRIAL: Trial = Trial {
    what: "network namespaces and AF_XDP",
    // Programs of BPF need the rights of the machine's own users.
    script: "echo | unshare --net true && ip link add v type veth peer name w && grep -q 4294967295 /proc/self/uid_map",
    input: "",
};

const ENDS: [(&str, &str); 4] =
    [("kernel", "kernel"), ("kernel", "xdp!"), ("xdp!", "kernel"), ("xdp!", "xdp!")];

/// Returns a host that is joined with this namespace.
fn other_host() -> Host {
    let host = Host::new().unwrap();
    host.join("v", "w").unwrap();
    bring_up("v", Ipv4Addr::new(10, 84, 0, 1)).unwrap();
    host.bring_up("w", SERVER.parse().unwrap()).unwrap();
    host
}

fn serve(host: &Host, flags: &[&str]) -> Server {
    let program = Path::new(env!("CARGO_BIN_EXE_petrel"));
    let listen = format!("{SERVER}:0");
    Server::start_by(host.command(program), &[&["--listen", &listen][..], flags].concat())
}

/// Returns a counter of the server's first endpoint, asked on its host.
fn counter(host: &Host, server: &Server, name: &str) -> u64 {
    let arguments = ["stats", &server.address, "--json"];
    let stats = host.run(env!("CARGO_BIN_EXE_petrel"), &arguments, "").unwrap();
    let stats: Value = serde_json::from_str(stats.trim()).unwrap();
    stats["endpoints"][0]["stats"][name].as_u64().unwrap()
}

/// Makes calls; all must be answered, with the right bytes.
fn ping(server: &Server, count: u32, flags: &[&str]) {
    let count = count.to_string();
    let call = ["ping", &server.address, "--json", "--warmup", "0", "--count", &count];
    let answer = succeed(&[&call[..], flags].concat());
    assert_eq!(record(&answer)["answered"].to_string(), count, "{flags:?}");
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
                ping(&server, 2_000, &[&by[..], &["--in-flight", "16", "--size", "1"]].concat());
                for (size, count) in [("1400", 200), ("100KiB", 50), ("8MiB", 4)] {
                    ping(&server, count, &[&by[..], &["--size", size]].concat());
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
        succeed(&["cert", "issue", SERVER, "--ca", &authority, "--out", &own]);
        succeed(&["cert", "issue", "client", "--ca", &authority, "--out", &client]);
        let server = serve(&host, &["--credentials", &own, "--device", "xdp!"]);
        for device in ["xdp!", "kernel"] {
            let by = ["--transport", "udp", "--credentials", &client, "--device", device];
            ping(&server, 500, &by);
            ping(&server, 2, &[&by[..], &["--size", "8MiB"]].concat());
        }
        assert!(counter(&host, &server, "rx_device_datagrams") > 1_000);
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
    });
}
