//! An interface of this network namespace, and its properties.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

use super::error::{Step, XdpError};

// `linux/sockios.h`, `linux/ethtool.h`.
const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_GDRVINFO: u32 = 0x3;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
/// Words of `struct ethtool_drvinfo` and `struct ethtool_channels`.
const DRIVER_WORDS: usize = 49;
const CHANNELS_WORDS: usize = 9;

/// The state of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    Up,
    Down,
    Gone,
}

/// An interface, known by its index: the name may change.
#[derive(Debug)]
pub(super) struct Interface {
    /// Any socket serves for the questions; this one keeps the namespace.
    control: OwnedFd,
    index: u32,
    name: String,
    namespace: u64,
}

impl Interface {
    /// Finds an interface in the namespace of the calling thread.
    pub(super) fn find(name: &str) -> Result<Self, XdpError> {
        let refused = |error: io::Error| Step::Ask.refused(name, error);
        let (family, flags) = (AddressFamily::INET, SocketFlags::CLOEXEC);
        let control = socket_with(family, SocketType::DGRAM, flags, None)
            .map_err(|error| refused(error.into()))?;
        let index = netdevice::name_to_index(&control, name)
            .map_err(|_| XdpError::NoInterface { interface: name.to_owned() })?;
        let namespace = rustix::fs::stat("/proc/thread-self/ns/net")
            .map_err(|error| refused(error.into()))?
            .st_ino;
        Ok(Self { control, index, name: name.to_owned(), namespace })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn index(&self) -> u32 {
        self.index
    }

    /// Returns a number that no other interface of the machine has.
    pub(super) fn key(&self) -> (u64, u32) {
        (self.namespace, self.index)
    }

    /// A socket of the interface's namespace.
    pub(super) fn control(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// Returns the addresses of the interface, in the namespace of the calling thread.
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        let mut list = std::ptr::null_mut();
        // SAFETY: the function writes a list to the place.
        if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
            return Vec::new();
        }
        let mut found = Vec::new();
        let mut next = list;
        // SAFETY: the list's entries live until `freeifaddrs`, and the last one's successor is null.
        while let Some(entry) = unsafe { next.as_ref() } {
            next = entry.ifa_next;
            // SAFETY: names are texts with an end.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_bytes();
            // An address may have a label, as `eth0:1`.
            let is_own = name.split(|byte| *byte == b':').next() == Some(self.name.as_bytes());
            // SAFETY: an address is null, or begins with its family.
            let family =
                unsafe { entry.ifa_addr.as_ref() }.map(|address| i32::from(address.sa_family));
            match family {
                Some(libc::AF_INET) if is_own => {
                    // SAFETY: the family says so.
                    let address = unsafe { *entry.ifa_addr.cast::<libc::sockaddr_in>() };
                    found.push(Ipv4Addr::from_bits(u32::from_be(address.sin_addr.s_addr)).into());
                }
                Some(libc::AF_INET6) if is_own => {
                    // SAFETY: as above.
                    let address = unsafe { *entry.ifa_addr.cast::<libc::sockaddr_in6>() };
                    found.push(Ipv6Addr::from_octets(address.sin6_addr.s6_addr).into());
                }
                _ => {}
            }
        }
        // SAFETY: the list is the function's, and no reference to it is left.
        unsafe { libc::freeifaddrs(list) };
        found
    }

    /// Returns the most bytes of an IP packet.
    pub(super) fn mtu(&self) -> Result<usize, XdpError> {
        let request = self.ask(libc::SIOCGIFMTU, |_| ());
        let request = request.map_err(|error| Step::Ask.refused(&self.name, error))?;
        // SAFETY: the kernel has written the MTU to this field.
        Ok(usize::try_from(unsafe { request.ifr_ifru.ifru_mtu }).unwrap_or(0))
    }

    /// Returns the number of receive queues; interfaces that tell none have one.
    pub(super) fn queues(&self) -> u32 {
        // The words: the request, four maxima, and the present receive, send, other and combined channels.
        match self.ask_driver::<CHANNELS_WORDS>(ETHTOOL_GCHANNELS) {
            Ok(words) => words[5].saturating_add(words[8]).max(1),
            Err(_) => 1,
        }
    }

    /// Returns the name of the driver, empty if the interface tells none.
    pub(super) fn driver(&self) -> String {
        let words = self.ask_driver::<DRIVER_WORDS>(ETHTOOL_GDRVINFO).unwrap_or([0; DRIVER_WORDS]);
        let bytes: Vec<u8> = words[1..9].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let name = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    pub(super) fn link(&self) -> Link {
        match self.ask(libc::SIOCGIFFLAGS, |_| ()) {
            Ok(request) => {
                // SAFETY: the kernel has written the flags to this field.
                let flags = i32::from(unsafe { request.ifr_ifru.ifru_flags });
                let up = libc::IFF_UP | libc::IFF_RUNNING;
                if flags & up == up { Link::Up } else { Link::Down }
            }
            Err(_) => Link::Gone,
        }
    }

    /// Asks about the interface that has the index now, by its present name.
    fn ask(
        &self,
        what: libc::Ioctl,
        fill: impl FnOnce(&mut libc::ifreq),
    ) -> io::Result<libc::ifreq> {
        let name = netdevice::index_to_name(&self.control, self.index)?;
        // SAFETY: integers, and a pointer that may be null.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        fill(&mut request);
        // SAFETY: the request is a live `struct ifreq`; a pointer within comes from `ask_driver`.
        let result = unsafe { libc::ioctl(self.control.as_raw_fd(), what, &raw mut request) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(request) }
    }

    fn ask_driver<const WORDS: usize>(&self, what: u32) -> io::Result<[u32; WORDS]> {
        let mut words = [0; WORDS];
        words[0] = what;
        let at = words.as_mut_ptr();
        // The kernel writes as many words as the request's structure has, which both callers state.
        self.ask(SIOCETHTOOL, |request| request.ifr_ifru.ifru_data = at.cast())?;
        Ok(words)
    }
}

/// Refuses kernels before 5.11, the first with `SO_PREFER_BUSY_POLL` and with program memory that is not locked memory.
pub(super) fn check_kernel(release: &str) -> Result<(), XdpError> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>());
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (5, 11) => Ok(()),
        _ => Err(XdpError::Kernel { release: release.to_owned() }),
    }
}

/// Returns true if the error says that another holder has the object.
pub(super) fn is_taken(error: Errno) -> bool {
    error == Errno::BUSY || error == Errno::EXIST
}
