//! The system call without a safe wrapper. No other module of the doctor has `unsafe` code.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

/// The words of `struct ethtool_coalesce`.
const COALESCE_WORDS: usize = 23;

/// Returns the words of `struct ethtool_coalesce` of a network device, as `ethtool -c` reads them.
pub(super) fn interrupt_coalescing(device: &str) -> io::Result<[u32; COALESCE_WORDS]> {
    const ETHTOOL_GCOALESCE: u32 = 0x0e;
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    /// `struct ifreq` with a pointer; the union of `struct ifreq` is larger than a pointer.
    #[repr(C)]
    struct Request {
        name: [u8; libc::IFNAMSIZ],
        data: *mut u32,
        rest: [u64; 2],
    }
    let mut name = [0; libc::IFNAMSIZ];
    // The kernel wants a zero at the end.
    if device.len() >= name.len() {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    name[..device.len()].copy_from_slice(device.as_bytes());
    let mut words = [0; COALESCE_WORDS];
    words[0] = ETHTOOL_GCOALESCE;
    let mut request = Request { name, data: words.as_mut_ptr(), rest: [0; 2] };
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    // SAFETY: the request is at least as large as `struct ifreq` and begins like it. The kernel writes a
    // `struct ethtool_coalesce` to `words`, which has its size; both live until the call returns.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(words) }
}
