//! A device's offloads, by the requests that `ethtool -K` makes.
//!
//! All requests use a single ioctl with a structure of words; the first word is the request's number.
//! Features have names; a feature's number is its position in the list of names.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use crate::tool::Error;

/// The offloads that join several packets into one; all are switched off.
const OFFLOADS: [&str; 3] = ["tx-udp-segmentation", "tx-generic-segmentation", "rx-gro"];

// `linux/ethtool.h`.
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_SFEATURES: u32 = 0x3b;
const ETH_SS_FEATURES: u32 = 4;
const SIOCETHTOOL: libc::Ioctl = 0x8946;

/// Bytes and words of a name.
const NAME_BYTES: usize = 32;
const NAME_WORDS: usize = NAME_BYTES / 4;

/// Most features that a kernel may report; kernels have about 64.
const FEATURES_MAX: usize = 1024;

/// Switches off the offloads by which a device of this thread's namespace joins several packets into one.
///
/// # Errors
/// There is no such device, or its kernel keeps an offload on.
pub fn switch_off_offloads(device: &str) -> Result<(), Error> {
    let done = switch_off(device, &OFFLOADS);
    done.map_err(|error| Error::Offloads { device: device.to_owned(), error })
}

/// Has the kernel write the checksums of packets before they reach a device of this thread's namespace.
///
/// # Errors
/// There is no such device, or its kernel keeps the offload on.
pub fn switch_off_checksums(device: &str) -> Result<(), Error> {
    let done = switch_off(device, &["tx-checksum-ip-generic"]);
    done.map_err(|error| Error::Offloads { device: device.to_owned(), error })
}

/// Has a device of this thread's namespace join received packets.
///
/// # Errors
/// There is no such device, or it cannot.
pub fn switch_on_joining(device: &str) -> Result<(), Error> {
    let done = switch(device, &["rx-gro"], true);
    done.map_err(|error| Error::Offloads { device: device.to_owned(), error })
}

fn switch_off(device: &str, offloads: &[&str]) -> io::Result<()> {
    switch(device, offloads, false)
}

fn switch(device: &str, offloads: &[&str], on: bool) -> io::Result<()> {
    let control = Control { device, socket: UdpSocket::bind(("0.0.0.0", 0))? };
    let names = control.names()?;
    let indices: Vec<usize> = offloads
        .iter()
        .filter_map(|offload| names.iter().position(|name| name == offload))
        .collect();
    control.set(&indices, on, names.len())?;
    let active = control.active(names.len())?;
    match indices.iter().find(|index| is_set(&active, **index) != on) {
        None => Ok(()),
        Some(index) => Err(io::Error::other(format!("the kernel keeps {}", names[*index]))),
    }
}

fn is_set(words: &[u32], index: usize) -> bool {
    words.get(index / 32).is_some_and(|word| word & (1 << (index % 32)) != 0)
}

/// The argument of the ioctl: `struct ifreq` with a pointer.
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    data: *mut u32,
    /// The union of `struct ifreq` is larger than a pointer.
    rest: [u64; 2],
}

struct Control<'a> {
    device: &'a str,
    /// Any socket serves for the ioctl.
    socket: UdpSocket,
}

impl Control<'_> {
    /// Makes a request. `words` holds the request, and afterwards the answer.
    ///
    /// Every caller passes as many words as the kernel writes for that request.
    fn ask(&self, words: &mut [u32]) -> io::Result<()> {
        let mut name = [0; libc::IFNAMSIZ];
        name[..self.device.len()].copy_from_slice(self.device.as_bytes());
        let mut request = Request { name, data: words.as_mut_ptr(), rest: [0; 2] };
        // SAFETY: the request is at least as large as `struct ifreq` and begins like it. Its pointer
        // leads to words whose second or third says, where the request's size varies, how many more
        // words follow.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Returns the names of all features, in order.
    fn names(&self) -> io::Result<Vec<String>> {
        // The request, a reserved word, a mask of two words, and room for one answer.
        let mut info = [ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_FEATURES, 0, 0];
        self.ask(&mut info)?;
        let count = info[4] as usize;
        if count > FEATURES_MAX {
            return Err(io::Error::other(format!("the kernel has {count} features")));
        }
        let mut strings = vec![0; 3 + count * NAME_WORDS];
        strings[..3].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_FEATURES, count as u32]);
        self.ask(&mut strings)?;
        Ok(strings[3..].chunks(NAME_WORDS).map(parse_name).collect())
    }

    /// Switches features on or off.
    fn set(&self, indices: &[usize], on: bool, count: usize) -> io::Result<()> {
        let blocks = count.div_ceil(32);
        let mut words = vec![0; 2 + 2 * blocks];
        words[..2].copy_from_slice(&[ETHTOOL_SFEATURES, blocks as u32]);
        // Per block: the mask of bits to set, and their values.
        for index in indices {
            let (place, bit) = (2 + 2 * (index / 32), 1 << (index % 32));
            words[place] |= bit;
            words[place + 1] |= if on { bit } else { 0 };
        }
        self.ask(&mut words)
    }

    /// Returns the bits of the active features.
    fn active(&self, count: usize) -> io::Result<Vec<u32>> {
        let blocks = count.div_ceil(32);
        let mut words = vec![0; 2 + 4 * blocks];
        words[..2].copy_from_slice(&[ETHTOOL_GFEATURES, blocks as u32]);
        self.ask(&mut words)?;
        // Per block: available, requested, active, never changed.
        Ok(words[2..].chunks(4).map(|block| block[2]).collect())
    }
}

/// A name ends with a zero byte.
fn parse_name(words: &[u32]) -> String {
    let bytes = words.iter().flat_map(|word| word.to_ne_bytes());
    bytes.take_while(|byte| *byte != 0).map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names__of_the_loopback_device_are_known() {
        let control = Control { device: "lo", socket: UdpSocket::bind("127.0.0.1:0").unwrap() };
        let names = control.names().unwrap();
        for offload in OFFLOADS {
            assert!(names.iter().any(|name| name == offload), "{offload} is not in {names:?}");
        }
        assert!(control.active(names.len()).unwrap().iter().any(|word| *word != 0));
    }

    #[test]
    fn switch_off__names_the_device_that_there_is_not() {
        let failure = switch_off_offloads("no-such-dev").unwrap_err();
        assert!(failure.to_string().contains("no-such-dev"), "{failure}");
    }
}
