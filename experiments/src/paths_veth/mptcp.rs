//! The kernel's MPTCP over the same links, as far as this kernel has it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use petrel_command::failure::Failure;

use super::network::{self, HostEnd};
use petrel_bench::measure::ends::Side;
use petrel_bench::measure::test_bed::TestBed;
use petrel_bench::measure::window::Window;

/// Time for a connection to fill the links, before each window.
const WARM_UP: Duration = Duration::from_millis(300);

/// Time after a window, in which the socket's buffers empty.
const REST: Duration = Duration::from_millis(200);

const CHUNK_BYTES: usize = 64 << 10;

/// A connection that sends in windows.
pub(super) struct Mptcp {
    is_sending: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
}

/// Returns a connection with a subflow over every link, or an error with the reason.
pub(super) fn connect(test_bed: &TestBed) -> Result<Box<dyn Side>, Failure> {
    network::allow_subflows(HostEnd::Client)?;
    let received = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&received);
    let server = test_bed.in_server_thread(move || {
        network::allow_subflows(HostEnd::Server)?;
        let listener = listen((HostEnd::Server.address(), 0).into())?;
        let address = listener.local_addr()?;
        // The thread is in the namespace of the one that starts it, and ends with the connection.
        thread::spawn(move || {
            let Ok((mut stream, _)) = listener.accept() else { return };
            let mut chunk = vec![0; CHUNK_BYTES];
            while let Ok(count @ 1..) = stream.read(&mut chunk) {
                counter.fetch_add(count as u64, Ordering::Relaxed);
            }
        });
        Ok(address)
    })?;
    let mut stream = connect_to(server)?;
    let (is_sending, is_over) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let side =
        Mptcp { is_sending: Arc::clone(&is_sending), is_over: Arc::clone(&is_over), received };
    thread::spawn(move || {
        let chunk = vec![0x5A; CHUNK_BYTES];
        while !is_over.load(Ordering::Relaxed) {
            if !is_sending.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(1));
            } else if stream.write_all(&chunk).is_err() {
                return;
            }
        }
    });
    Ok(Box::new(side))
}

impl Side for Mptcp {
    fn window(&mut self, length: Duration) -> Result<Window, Failure> {
        self.is_sending.store(true, Ordering::Relaxed);
        thread::sleep(WARM_UP);
        let (start, before) = (Instant::now(), self.received.load(Ordering::Relaxed));
        thread::sleep(length);
        let mut window = Window::new(None);
        window.bytes = self.received.load(Ordering::Relaxed) - before;
        window.elapsed_ns = start.elapsed().as_nanos() as u64;
        self.is_sending.store(false, Ordering::Relaxed);
        thread::sleep(REST);
        // Bytes of a stream are no requests; one stands for all.
        (window.calls, window.checked) = (1, 1);
        Ok(window)
    }
}

impl Drop for Mptcp {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Makes a socket of MPTCP.
fn socket() -> Result<OwnedFd, Failure> {
    const IPPROTO_MPTCP: i32 = 262;
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: the call has no pointers.
    let fd = unsafe { libc::socket(libc::AF_INET, kind, IPPROTO_MPTCP) };
    if fd < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Failure::because(format!("this kernel makes no MPTCP socket: {error}")));
    }
    // SAFETY: the descriptor is new, and belongs to nothing else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn listen(at: SocketAddr) -> Result<TcpListener, Failure> {
    let socket = socket()?;
    rustix::net::bind(&socket, &at).map_err(std::io::Error::from)?;
    rustix::net::listen(&socket, 1).map_err(std::io::Error::from)?;
    Ok(socket.into())
}

fn connect_to(server: SocketAddr) -> Result<TcpStream, Failure> {
    let socket = socket()?;
    rustix::net::connect(&socket, &server).map_err(std::io::Error::from)?;
    Ok(socket.into())
}
