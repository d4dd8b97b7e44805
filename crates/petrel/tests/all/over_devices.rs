//! AF_XDP between two hosts: other suites of this program, in a run of their own, and servers that follow each other.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use petrel::nexus::fetch_stats;
use petrel::server::start_successor;
use petrel::{Client, Endpoint, Server};
use petrel_netns::{Host, bring_up, ip};
use rustix::process::Signal;

use crate::common::device;
use crate::common::own_network::{Trial, in_own_network};
use crate::server::Process;

const TRIAL: Trial = Trial {
    what: "network namespaces and AF_XDP",
    // Programs of BPF need the rights of the machine's own users.
    script: "echo | unshare --net true && ip link add v type veth peer name w && grep -q 4294967295 /proc/self/uid_map",
    input: "",
};

/// Returns a host that is joined with this one.
fn other_host() -> Host {
    let (host, queues) = (Host::new().unwrap(), "numrxqueues 8 numtxqueues 8");
    let there = format!("there netns {} {queues}", host.id());
    ip(&format!("link add here {queues} type veth peer name {there}")).unwrap();
    bring_up("here", Ipv4Addr::new(10, 85, 0, 1)).unwrap();
    host.bring_up("there", device::ADDRESS).unwrap();
    host
}

/// The suites of the nexus exchange no datagrams.
const SUITES: [&str; 3] = ["interop::", "deadlines::", "paths::"];

#[test]
fn suites__pass_by_devices_at_both_ends() {
    in_own_network(&TRIAL, module_path!(), "suites__pass_by_devices_at_both_ends", || {
        let host = other_host();
        let mut suites = Command::new(std::env::current_exe().unwrap());
        suites.args(SUITES).args(["--test-threads=1", "--nocapture"]);
        let ended = suites.env(device::HOST, host.id().to_string()).output().unwrap();
        let said = [ended.stdout, ended.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(ended.status.success(), "{}", said.join("\n"));
        let counts = said[0].split(device::COUNTED).skip(1).map(|rest| {
            let mut numbers = rest.split_whitespace().map(|number| number.parse::<u64>().unwrap());
            [numbers.next().unwrap(), numbers.next().unwrap()]
        });
        let [by_device, all] = counts.reduce(|[a, b], [c, d]| [a + c, b + d]).unwrap();
        println!("{by_device} of {all} datagrams came by the device");
        assert!(2 * by_device > all, "{by_device} of {all}");
    });
}

/// Set in processes that serve.
const SERVES: &str = "PETREL_TEST_DEVICE_SERVES";
const READY: &str = "ready to serve";

/// Answers with the number of the process.
const WHO: u16 = 1;

fn serve_until_signal() {
    let set_up = |endpoint: &mut Endpoint| {
        endpoint.on(WHO, |_, cx, request| request.reply(cx, &std::process::id().to_le_bytes()));
        println!("\n{READY}");
    };
    let server = Server::inherit_or_bind("127.0.0.1:1").insecure();
    server.device("xdp".parse().unwrap()).serve(|_| (), set_up).run().unwrap();
}

fn wait_for_ready(process: &mut Process) {
    let mut output = BufReader::new(process.child.stdout.as_mut().unwrap());
    let mut line = String::new();
    while line.trim_end() != READY {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0, "the process has ended");
    }
}

/// The datagrams that the server at the socket has received by its device.
fn received_by_device(host: &Host, socket: &TcpListener) -> u64 {
    let address = socket.local_addr().unwrap();
    let stats = host.spawn(move || fetch_stats(address, Duration::from_secs(60))).join().unwrap();
    crate::common::counter(&stats.unwrap(), "rx_device_datagrams")
}

/// The interface has the program of one process: a successor that starts earlier begins with the kernel's socket.
#[test]
fn successor__takes_the_device_over_and_no_call_is_lost() {
    if std::env::var_os(SERVES).is_some() {
        return serve_until_signal();
    }
    let name = "successor__takes_the_device_over_and_no_call_is_lost";
    in_own_network(&TRIAL, module_path!(), name, || {
        let host = other_host();
        let bind = || TcpListener::bind((device::ADDRESS, 0)).unwrap();
        let socket = host.spawn(bind).join().unwrap();
        let address = socket.local_addr().unwrap();
        let start = || {
            let mut command = host.command(&std::env::current_exe().unwrap());
            command.args(["--exact", &format!("over_devices::{name}"), "--nocapture"]);
            command.env(SERVES, "1").stdout(Stdio::piped());
            Process { child: start_successor(&mut command, [&socket], b"").unwrap(), address }
        };
        let mut server = start();
        let client = Client::builder().insecure().device("xdp!".parse().unwrap());
        let client = client.connect_wait(address).unwrap();
        let ask = || {
            let call = client.call(WHO, "").timeout(Duration::from_secs(60)).wait_for_ready();
            u32::from_le_bytes(call.wait().expect("no call is lost")[..].try_into().unwrap())
        };
        assert_eq!(ask(), server.child.id());
        assert!(received_by_device(&host, &socket) > 0);
        // The predecessor ends while the successor waits for the device, and when the successor has begun without.
        for is_ready in [false, true] {
            let mut successor = start();
            if is_ready {
                wait_for_ready(&mut successor);
            }
            let is_over = AtomicBool::new(false);
            thread::scope(|scope| {
                let calls = scope.spawn(|| {
                    let mut count = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        ask();
                        count += 1;
                    }
                    count
                });
                server.signal(Signal::TERM);
                assert!(server.ends_well());
                let ended = Instant::now();
                while ask() != successor.child.id() || received_by_device(&host, &socket) == 0 {}
                let time = ended.elapsed();
                is_over.store(true, Ordering::Relaxed);
                println!("by the device after {time:?}, {} calls", calls.join().unwrap());
            });
            server = successor;
        }
    });
}
