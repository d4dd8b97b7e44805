//! Devices that fail during calls, packets on wrong queues, and the memory of a device.

use std::fs;
use std::net::UdpSocket;
use std::os::fd::RawFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use petrel::Nexus;
use petrel::endpoint::{Device, EndpointConfig};
use petrel_netns::{Host, bring_up, ip};
use petrel_transport::device::xdp::{Queues, XdpConfig};
use petrel_transport::udp::XdpDevice;

use crate::common::{Killed, wait_until};
use crate::credentials::Folder;
use crate::device_calls::{DATA_PORT, Log, Plan, call, serve, times};
use crate::devices::{self, CLIENT, SERVER, TRIAL, counter_at, other_host};
use crate::own_network;

/// Frames that tell that a device works again.
const FRAMES: u64 = 100;

/// Datagrams to a server that does not read: several times as many as a device has memory for.
const FLOOD: u64 = 4_000;

/// The pause of a device that goes away and comes back.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug)]
enum Fault {
    HelperKilled,
    LinkDown,
    DeviceDeleted,
    ProgramTaken,
    RingFull,
}

/// The two hosts of calls under way.
struct Scene<'a> {
    host: &'a Host,
    server: String,
    log: &'a Log,
    helper_socket: String,
    helper: Killed,
    ended: &'a AtomicU64,
    /// Frames that the client's device has received.
    received: &'a AtomicU64,
}

impl Scene<'_> {
    fn happen(&mut self, fault: Fault) {
        match fault {
            Fault::HelperKilled => self.restart_helper(),
            Fault::LinkDown => {
                ip("link set v down").unwrap();
                thread::sleep(PAUSE);
                ip("link set v up").unwrap();
            }
            Fault::DeviceDeleted => {
                ip("link delete v").unwrap();
                thread::sleep(PAUSE);
                self.host.join("v", "w").unwrap();
                bring_up("v", CLIENT).unwrap();
                self.host.bring_up("w", SERVER).unwrap();
                self.restart_helper();
            }
            Fault::ProgramTaken => {
                let refused = self.host.run("ip", &["link", "set", "w", "xdpgeneric", "off"], "");
                assert!(refused.is_err(), "only the owner of a link takes its program away");
                detach_own_program();
            }
            Fault::RingFull => {
                let dropped = || self.at_server("rx_dropped_kernel");
                let before = dropped();
                let socket = UdpSocket::bind((CLIENT, 0)).unwrap();
                // A burst may overflow the queue before the device instead.
                while dropped() <= before + FLOOD / 2 {
                    self.log.with_stopped_server(|| {
                        (0..FLOOD).for_each(|_| drop(socket.send_to(&[0], (SERVER, DATA_PORT))));
                    });
                }
            }
        }
    }

    fn restart_helper(&mut self) {
        self.helper.kill();
        thread::sleep(PAUSE);
        self.helper = start_helper(&self.helper_socket);
    }

    fn at_server(&self, counter: &str) -> u64 {
        counter_at(self.host, &self.server, counter, &[])
    }

    /// Waits until both devices receive frames again. Returns the time.
    fn back_after(&self) -> Duration {
        let began = Instant::now();
        let at_client = self.received.load(Ordering::Relaxed);
        let at_server = self.at_server("rx_device_datagrams");
        let is_back = || {
            self.received.load(Ordering::Relaxed) > at_client + FRAMES
                && self.at_server("rx_device_datagrams") > at_server + FRAMES
        };
        assert!(wait_until(is_back), "the devices are used again");
        began.elapsed()
    }
}

fn start_helper(socket: &str) -> Killed {
    devices::start_helper(Command::new(env!("CARGO_BIN_EXE_petrel")), "v", socket)
}

/// Detaches the program of this process by force, as `bpftool link detach` does.
fn detach_own_program() {
    const BPF_LINK_DETACH: libc::c_long = 34;
    let is_link = |fd: &RawFd| {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
        info.contains("link_type:\txdp")
    };
    let names = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().file_name());
    let fds = names.map(|name| name.to_str().unwrap().parse::<RawFd>().unwrap());
    let link: Vec<RawFd> = fds.filter(is_link).collect();
    assert_eq!(link.len(), 1, "the server's");
    let argument = u64::from(link[0].cast_unsigned());
    // SAFETY: the kernel reads the 8 bytes of the argument, which lives: a descriptor of this process, and zeroes.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, BPF_LINK_DETACH, &raw const argument, 8_usize) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn calls__run_once_at_most_and_end_while_devices_fail() {
    let test = "calls__run_once_at_most_and_end_while_devices_fail";
    own_network::in_own_network(&TRIAL, module_path!(), test, || {
        use Fault::{DeviceDeleted, HelperKilled, LinkDown, ProgramTaken, RingFull};
        let faults = [HelperKilled, LinkDown, ProgramTaken, RingFull, DeviceDeleted];
        let (host, log) = (other_host(), Log::default());
        let folder = Folder::new("device_faults");
        let helper_socket = folder.path("socket");
        let server = serve(&host, "xdp!".parse().unwrap(), &log);
        let (ended, received) = (AtomicU64::new(0), AtomicU64::new(0));
        let is_done = AtomicBool::new(false);
        let count = 10_000 * times() * faults.len() as u64;
        let client: Device = format!("xdp:v@{helper_socket}!").parse().unwrap();
        let mut scene = Scene {
            host: &host,
            server: server.local_addr().to_string(),
            log: &log,
            helper: start_helper(&helper_socket),
            helper_socket,
            ended: &ended,
            received: &received,
        };
        let (ended, is_done) = (&ended, &is_done);
        let calls = thread::scope(|scope| {
            scope.spawn(move || {
                for (place, fault) in faults.into_iter().enumerate() {
                    let due = count / faults.len() as u64 * (place as u64 + 1) / 2;
                    assert!(wait_until(|| scene.ended.load(Ordering::Relaxed) > due));
                    scene.happen(fault);
                    println!("{fault:?}: devices again after {:?}", scene.back_after());
                }
                is_done.store(true, Ordering::Relaxed);
            });
            // Some calls have 70 packets each way.
            let bytes_of = |number: u64| if number.is_multiple_of(64) { 100_000 } else { 32 };
            let plan = Plan { first: 0, in_flight: 16, bytes_of };
            call(server.local_addr(), client, &plan, |count_now, stats| {
                ended.store(count_now, Ordering::Relaxed);
                let frames = stats.transport.rx_device_datagrams;
                received.store(frames, Ordering::Relaxed);
                count_now < count || !is_done.load(Ordering::Relaxed)
            })
        });
        calls.check(&log);
        println!("{} calls answered, {} late", calls.answered.len(), calls.late.len());
    });
}

/// Makes calls by two endpoints at once, by a server's and two clients' devices. Returns the calls per second, and the server's frames on its queue
/// and elsewhere.
fn rate(host: &Host, [at_server, first, second]: [Device; 3]) -> (f64, [u64; 2]) {
    let (log, count) = (Log::default(), 10_000 * times());
    let server = serve(host, at_server, &log);
    let rates = thread::scope(|scope| {
        let threads = [(first, 0), (second, 1 << 40)].map(|(device, first)| {
            let (log, address) = (&log, server.local_addr());
            scope.spawn(move || {
                let plan = Plan { first, in_flight: 16, bytes_of: |_| 32 };
                // Opening a device takes long beside these calls.
                let mut began = None;
                let calls = call(address, device, &plan, |ended, _| {
                    began = began.or_else(|| (ended > 0).then(|| (Instant::now(), ended)));
                    ended < count
                });
                assert!(calls.late.is_empty(), "{} calls were late", calls.late.len());
                calls.check(log);
                let (began, before) = began.unwrap();
                (count - before.min(count)) as f64 / began.elapsed().as_secs_f64()
            })
        });
        threads.map(|thread| thread.join().unwrap())
    });
    let rate = rates.iter().sum();
    let address = server.local_addr().to_string();
    let counter = |name| counter_at(host, &address, name, &[]);
    (rate, ["rx_device_datagrams", "rx_device_missed"].map(counter))
}

fn on_queue(queue: u32) -> Device {
    let config = XdpConfig { queues: Queues::List(vec![queue]), ..XdpConfig::default() };
    Device::Xdp(XdpDevice { interface: None, is_required: true, config })
}

#[test]
fn calls__with_half_of_the_packets_on_a_wrong_queue_all_end() {
    let test = "calls__with_half_of_the_packets_on_a_wrong_queue_all_end";
    own_network::in_own_network(&TRIAL, module_path!(), test, || {
        let host = Host::new().unwrap();
        let queues = "numrxqueues 3 numtxqueues 3";
        ip(&format!("link add v {queues} type veth peer name w {queues} netns {}", host.id()))
            .unwrap();
        bring_up("v", CLIENT).unwrap();
        host.bring_up("w", SERVER).unwrap();
        for _ in 0..3 {
            // In generic mode, a frame of queue n > 0 arrives on queue n - 1: the second client sends to a queue without a socket, and gets its
            // responses on the first one's queue.
            let (device, [caught, missed]) = rate(&host, [0, 0, 2].map(on_queue));
            assert!(4 * missed > caught + missed, "{caught} frames, {missed} missed");
            let (kernel, _) = rate(&host, [Device::Kernel, Device::Kernel, Device::Kernel]);
            let ratio = device / kernel;
            println!(
                "{missed} of {} frames on a wrong queue: {device:.0} calls/s; by the kernel {kernel:.0}; ratio {ratio:.2}",
                caught + missed
            );
        }
    });
}

/// The memory of devices in this process, in KiB: rings, and memory for frames, which children do not get.
fn pinned_kib() -> u64 {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut sum, mut size, mut is_ring) = (0, 0, false);
    for line in maps.lines() {
        match line.split_ascii_whitespace().collect::<Vec<_>>()[..] {
            ["Size:", kib, _] => size = kib.parse().unwrap(),
            ["VmFlags:", ref flags @ ..] if is_ring || flags.contains(&"dc") => sum += size,
            [range, _, ..] if range.contains('-') => is_ring = line.contains("socket:"),
            _ => {}
        }
    }
    sum
}

#[test]
fn device__pins_at_most_five_mib_by_default_and_seventeen_by_setting() {
    let test = "device__pins_at_most_five_mib_by_default_and_seventeen_by_setting";
    own_network::in_own_network(&TRIAL, module_path!(), test, || {
        let host = other_host();
        for (mtu, chunks, kib_max) in
            [(1_500, 1_024, 5 << 10), (9_000, 1_024, 5 << 10), (9_000, 4_096, 17 << 10)]
        {
            ip(&format!("link set v mtu {mtu}")).unwrap();
            let nexus = Nexus::builder().insecure().start().unwrap();
            let before = pinned_kib();
            let mut config = EndpointConfig::default();
            config.data_address = Some(CLIENT.into());
            let xdp = XdpConfig { chunks, ..XdpConfig::default() };
            let device = XdpDevice { interface: None, is_required: true, config: xdp };
            config.host.udp.device = Some(Device::Xdp(device));
            let endpoint = nexus.endpoint(config).unwrap();
            let pinned = pinned_kib() - before;
            drop(endpoint);
            println!("{chunks} chunks, packets of {mtu} bytes: {pinned} KiB");
            assert!((2 << 10..=kib_max).contains(&pinned), "{pinned} KiB");
        }
        drop(host);
    });
}
