//! The interfaces of this network namespace, by their addresses.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr::null_mut;

/// Returns the name of the interface with an address, if there is one.
pub(crate) fn interface_with(ip: IpAddr) -> io::Result<Option<String>> {
    let mut first: *mut libc::ifaddrs = null_mut();
    // SAFETY: the function writes a pointer to a list, or returns an error.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let (mut next, mut found) = (first, None);
    // SAFETY: the list's elements and their names and addresses live until `freeifaddrs`; a null pointer ends the list.
    unsafe {
        while let Some(entry) = next.as_ref() {
            if address_of(entry.ifa_addr) == Some(ip.to_canonical()) {
                found = Some(CStr::from_ptr(entry.ifa_name).to_string_lossy().into_owned());
                break;
            }
            next = entry.ifa_next;
        }
        libc::freeifaddrs(first);
    }
    Ok(found)
}

/// # Safety
/// The pointer is null, or leads to an address of the family that it names.
unsafe fn address_of(addr: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: by this function's contract; the structures have the alignment of the list.
    unsafe {
        match i32::from(addr.as_ref()?.sa_family) {
            libc::AF_INET => {
                let v4 = addr.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => {
                let v6 = addr.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_with__an_address_of_loopback_and_of_no_interface() {
        let lo = interface_with(IpAddr::from([127, 0, 0, 1])).unwrap();
        assert_eq!(lo.as_deref(), Some("lo"));
        // TEST-NET-1 (RFC 5737).
        assert_eq!(interface_with(IpAddr::from([192, 0, 2, 77])).unwrap(), None);
    }
}
