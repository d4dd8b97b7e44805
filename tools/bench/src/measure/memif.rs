//! Two processes whose ports of DPDK are joined by shared memory (net_memif), without any right.
//!
//! This process has the calling ends, and another one the answering ends. Either process starts DPDK with two devices: one for the library, and one
//! for the bare medium, which sends and receives by DPDK's functions alone.

use std::cell::RefCell;
use std::io::{BufRead, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::process::ChildStdin;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use petrel::endpoint::Device;
use petrel_command::args::BenchTransport;
use petrel_command::cores::CpuPlacement;
use petrel_command::device;
use petrel_command::failure::Failure;
use petrel_command::methods;
use petrel_transport::device::dpdk::Bare;
use petrel_transport::udp::{DpdkDevice, Mtu};

use super::baseline::device::{BarePort, offer};
use super::baseline::echo::Grouping;
use super::baseline::{echo, socket, stream};
use super::ends::{ClientEnd, Side, run_client};
use super::figure::{Baseline, Quantity, Setting};
use super::library::{Answerer, EndConfig};
use super::measurement::{MTU, Measurement, UDP_HEADER_BYTES};
use super::process::{Lines, Process, end_with_parent, parse};
use super::server_thread::ServerThread;
use super::test_bed::{Cores, TestBed};
use super::veth::Outcome;
use super::window::{Traffic, Window};

/// The addresses of the calling and the answering end.
const ADDRESSES: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1)), IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2))];

/// Longest wait for a port to be joined.
const LINK_TIMEOUT: Duration = Duration::from_secs(30);

/// Windows of calls until the calls go by the device.
const WARM_UP: Duration = Duration::from_millis(50);
const WARM_UPS_MAX: u32 = 200;

/// The ends in the other process.
const LIBRARY: usize = 0;
const BARE: usize = 1;

/// Runs a measurement between two processes.
pub fn run(measurement: &Measurement, watch: impl FnMut(u32, u32)) -> Result<Outcome, Failure> {
    if device::get() != Device::Kernel {
        return Err(Failure::because("--memif has devices of its own: leave --device out"));
    }
    let command = command(measurement);
    let name = format!("petrel-bench-{}", std::process::id());
    // The server of the memory listens before the other process looks for it.
    let bare = match open_bare(&name, "server") {
        Ok(bare) => bare,
        Err(reason) => return Ok(Outcome::Skipped(reason)),
    };
    let size = measurement.size.to_string();
    let quantity = measurement.quantity.name();
    let (process, input) = Process::start_with_input(&[
        "bench",
        "memif-server",
        "--name",
        &name,
        "--quantity",
        quantity,
        "--size",
        &size,
    ])?;
    let other = Rc::new(RefCell::new(Other::new(process, input)?));
    wait_for_link(&bare)?;
    offer(bare);
    let server: SocketAddr = parse(&other.borrow().lines.next_line()?)?;

    let test_bed = TestBed::new(Cores::Two, measurement.pace.is_realtime)?;
    let placements = test_bed.placements();
    let quiet = placements.map(|placement| CpuPlacement { is_realtime: false, ..placement });
    other.borrow_mut().run(LIBRARY, quiet[1])?;
    let caller = measurement.caller((server, 0), &measurement.shape(), &mut thread::yield_now)?;
    other.borrow_mut().stop()?;
    let mut library =
        TwoProcesses { client: caller, other: Rc::clone(&other), end: LIBRARY, placements: quiet };
    for warm_up in 0.. {
        // A client begins by the kernel, until its port is joined.
        let by_device = library.client.endpoint.stats().transport.tx_device_datagrams;
        library.window(WARM_UP)?;
        if library.client.endpoint.stats().transport.tx_device_datagrams > by_device + 100 {
            break;
        }
        if warm_up == WARM_UPS_MAX {
            return Err(Failure::because("the calls do not go by the device"));
        }
    }
    library.placements = placements;

    let mut bare = bare_side(measurement, &other, placements)?;
    let describe = |setting| Setting { network: Some("memif"), command, ..setting };
    let beside: &mut dyn Side = bare.as_mut();
    let sides: (&mut dyn Side, _) = (&mut library, Some((beside, Baseline::BareMedium)));
    let figure = measurement.compare(&test_bed, sides, describe, watch)?;
    Ok(Outcome::Measured(Box::new(figure)))
}

/// Returns the command that repeats the measurement.
pub fn command(measurement: &Measurement) -> String {
    let measurement = Measurement { cores: Cores::Two, ..measurement.clone() };
    format!("{} --memif", measurement.command())
}

/// Starts DPDK, gives the endpoints of this process the first port, and returns the second.
fn open_bare(name: &str, role: &str) -> Result<Bare, String> {
    let memif =
        |id| format!("--vdev=net_memif{id},id={id},role={role},socket={name},socket-abstract=yes");
    let arguments =
        format!("--no-huge --no-pci --no-shconf --no-telemetry {} {}", memif(LIBRARY), memif(BARE));
    // SAFETY: the other process ends after this one's last window, and ends with this process.
    let bare = unsafe { Bare::open(&arguments) }?;
    device::set(Device::Dpdk(DpdkDevice { arguments, is_required: true }));
    Ok(bare)
}

fn wait_for_link(bare: &Bare) -> Result<(), Failure> {
    let end = Instant::now() + LINK_TIMEOUT;
    while !bare.is_up() {
        if Instant::now() > end {
            return Err(Failure::because("the other process does not join the bare port"));
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Binds a socket, whose address is the bare end's. The peer's port makes no difference to the bare port.
fn bare_ends(own: usize) -> Result<(UdpSocket, SocketAddr), Failure> {
    Ok((socket::bind(ADDRESSES[own])?, (ADDRESSES[1 - own], 9).into()))
}

/// Returns the bytes of the bare medium's datagrams with large messages: as many as the library's have.
fn datagram_bytes() -> usize {
    Mtu::default().on_path(MTU.into()) - UDP_HEADER_BYTES
}

fn bare_side(
    measurement: &Measurement,
    other: &Rc<RefCell<Other>>,
    placements: [CpuPlacement; 2],
) -> Result<Box<dyn Side>, Failure> {
    let (socket, to) = bare_ends(0)?;
    let Measurement { quantity, size, in_flight, .. } = *measurement;
    fn side<C: ClientEnd + 'static>(
        client: C,
        other: &Rc<RefCell<Other>>,
        placements: [CpuPlacement; 2],
    ) -> Box<dyn Side> {
        Box::new(TwoProcesses { client, other: Rc::clone(other), end: BARE, placements })
    }
    Ok(match quantity {
        Quantity::Latency => {
            side(echo::Caller::<BarePort>::timed(socket, to, size)?, other, placements)
        }
        Quantity::Rate => {
            let caller =
                echo::Caller::<BarePort>::new(socket, to, size, in_flight, Grouping::Runs)?;
            side(caller, other, placements)
        }
        Quantity::Bandwidth => {
            let sender = stream::Sender::<BarePort>::new(socket, to, size, datagram_bytes())?;
            side(sender, other, placements)
        }
    })
}

/// The calling end of this process, and an end of the other one.
struct TwoProcesses<C> {
    client: C,
    other: Rc<RefCell<Other>>,
    end: usize,
    placements: [CpuPlacement; 2],
}

impl<C: ClientEnd> Side for TwoProcesses<C> {
    fn window(&mut self, length: Duration) -> Result<Window, Failure> {
        let [own, there] = self.placements;
        let mut other = self.other.borrow_mut();
        let _placement_guard = own.apply()?;
        let before = self.client.traffic();
        other.run(self.end, there)?;
        run_client(&mut self.client, length, || ());
        let traffic = other.stop()?;
        let mut window = self.client.finish();
        window.traffic = self.client.traffic().since(before) + traffic;
        Ok(window)
    }
}

/// The other process.
struct Other {
    input: ChildStdin,
    lines: Lines,
    _process: Process,
}

impl Other {
    fn new(mut process: Process, input: ChildStdin) -> Result<Self, Failure> {
        Ok(Self { input, lines: process.lines()?, _process: process })
    }

    /// Polls an end from before the return on.
    fn run(
        &mut self,
        end: usize,
        CpuPlacement { cpu, is_realtime }: CpuPlacement,
    ) -> Result<(), Failure> {
        writeln!(self.input, "{}", serde_json::json!([end, cpu, is_realtime]))?;
        self.lines.next_line().map(drop)
    }

    fn stop(&mut self) -> Result<Traffic, Failure> {
        writeln!(self.input)?;
        parse(&self.lines.next_line()?)
    }
}

/// Arguments of the other process.
#[derive(clap::Args, Debug)]
pub struct MemifServerArgs {
    #[arg(long)]
    name: String,
    #[arg(long, value_enum)]
    quantity: Quantity,
    #[arg(long)]
    size: usize,
}

/// Has the answering ends, for the process that started this one. Each line on the standard input begins a window, or ends one.
pub fn serve(args: &MemifServerArgs) -> Result<(), Failure> {
    end_with_parent()?;
    let bare = open_bare(&args.name, "client").map_err(Failure::because)?;
    wait_for_link(&bare)?;
    offer(bare);
    let server_thread = ServerThread::start()?;
    let (sender, receiver) = mpsc::channel();
    let library = server_thread.install(move || {
        let config = EndConfig::new(BenchTransport::Udp, ADDRESSES[1]);
        let answerer = Answerer::start((ADDRESSES[1], 0).into(), &config, methods::register)?;
        // The result is received in any case.
        let _ = sender.send(answerer.address());
        Ok(answerer)
    })?;
    let (socket, to) = bare_ends(1)?;
    let MemifServerArgs { quantity, size, .. } = *args;
    let bare = match quantity {
        Quantity::Latency => server_thread
            .install(move || echo::Echo::<BarePort>::new(socket, to, size, Grouping::Singles))?,
        Quantity::Rate => server_thread
            .install(move || echo::Echo::<BarePort>::new(socket, to, size, Grouping::Runs))?,
        Quantity::Bandwidth => server_thread.install(move || {
            stream::Receiver::<BarePort>::new(socket, to, size, datagram_bytes())
        })?,
    };
    let ends = [library, bare];
    println!("{}", serde_json::json!(receiver.recv().map_err(Failure::because)?));
    let mut lines = std::io::stdin().lock().lines();
    while let Some(line) = lines.next().transpose()? {
        let (end, cpu, is_realtime): (usize, _, _) = parse(&line)?;
        let run = server_thread.run(ends[end], CpuPlacement { cpu, is_realtime })?;
        println!("running");
        lines.next().transpose()?;
        println!("{}", serde_json::json!(run.stop()?));
    }
    Ok(())
}
