//! Servers past the kernel (`--device`) under attack, and after the death of a process with a device.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use petrel_netns::Host;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Server, command, wait_until};
use crate::credentials::Folder;
use crate::devices::{SERVER, TRIAL, USER, counter, other_host, ping, serve, start_helper};
use crate::own_network;

/// Returns the address of the only UDP socket of a host.
fn data_port(host: &Host) -> SocketAddr {
    let sockets = host.run("cat", &["/proc/net/udp"], "").unwrap();
    let (_, rest) = sockets.lines().nth(1).unwrap().split_once(':').unwrap();
    let (_, port) = rest.split_whitespace().next().unwrap().split_once(':').unwrap();
    (SERVER, u16::from_str_radix(port, 16).unwrap()).into()
}

#[test]
fn strangers__that_flood_the_port_fail_no_call() {
    let test = "strangers__that_flood_the_port_fail_no_call";
    own_network::in_own_network(&TRIAL, module_path!(), test, || {
        let host = other_host();
        let server = serve(&host, &["--insecure", "--device", "xdp!"]);
        let (port, stranger) = (data_port(&host), UdpSocket::bind("0.0.0.0:0").unwrap());
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let sizes = [0, 1, 40, 1_472].into_iter().cycle();
                for size in sizes.take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    // More than the device has chunks.
                    (0..1_000).for_each(|_| _ = stranger.send_to(&vec![0x10; size], port));
                    thread::sleep(Duration::from_millis(5));
                }
            });
            for device in ["kernel", "xdp!"] {
                let by = ["--transport", "udp", "--device", device];
                ping(&server, 1_000, &by);
                ping(&server, 20, &[&by[..], &["--size", "100KiB"]].concat());
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(counter(&host, &server, "rx_dropped_unknown_peer") > 1_000);
        assert!(counter(&host, &server, "rx_device_datagrams") > 1_000);
    });
}

#[test]
fn peer__that_stops_reading_holds_up_no_other() {
    let test = "peer__that_stops_reading_holds_up_no_other";
    own_network::in_own_network(&TRIAL, module_path!(), test, || {
        let host = other_host();
        let server = serve(&host, &["--insecure", "--device", "xdp!"]);
        let call = ["ping", &server.address, "--device", "xdp!", "--transport", "udp"];
        let many = ["--size", "1MiB", "--in-flight", "8", "--count", "1000000"];
        let mut stopped = command(&[&call[..], &many].concat()).spawn().unwrap();
        let requests = || counter(&host, &server, "requests_received");
        assert!(wait_until(|| requests() > 20), "the calls go on");
        kill_process(Pid::from_child(&stopped), Signal::STOP).unwrap();
        ping(&server, 50, &["--transport", "udp", "--size", "100KiB"]);
        ping(&server, 1_000, &["--transport", "udp"]);
        stopped.kill().unwrap();
        stopped.wait().unwrap();
    });
}

/// The device has one queue.
#[test]
fn helper__gives_the_queue_of_a_killed_process_to_the_next() {
    let test = "helper__gives_the_queue_of_a_killed_process_to_the_next";
    own_network::in_own_network(&TRIAL, module_path!(), test, || {
        let (host, folder) = (other_host(), Folder::new("killed"));
        // A copy that the user may read.
        let (program, socket) = (folder.path("petrel"), folder.path("socket"));
        fs::copy(env!("CARGO_BIN_EXE_petrel"), &program).unwrap();
        let _helper = start_helper(host.command(Path::new(&program)), "w", &socket);
        let start = |end: &str| {
            let id = host.id().to_string();
            let mut command = Command::new("nsenter");
            command.args(["--target", &id, "--net", "--setuid", USER, "--setgid", USER, "--"]);
            let (listen, device) = (format!("{SERVER}:0"), format!("xdp@{socket}{end}"));
            command.arg(&program);
            Server::start_by(command, &["--listen", &listen, "--insecure", "--device", &device])
        };
        let by_device = |server: &Server| {
            ping(server, 100, &["--transport", "udp"]);
            counter(&host, server, "rx_device_datagrams") > 0
        };
        let mut first = start("!");
        assert!(by_device(&first));
        for _ in 0..2 {
            let next = start("");
            assert!(!by_device(&next) && by_device(&first));
            // Kills the process.
            drop(std::mem::replace(&mut first, next));
            assert!(wait_until(|| by_device(&first)));
        }
    });
}
