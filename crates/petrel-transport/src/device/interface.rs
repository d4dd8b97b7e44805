//! The interfaces of this network namespace, by their addresses.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr::null_mut;

/// Returns the names of the interfaces that are up and have the address; of all but loopback with any, for the unspecified address. The
/// link-local addresses that every interface has by IPv6 do not count then.
pub(crate) fn interfaces_with(ip: IpAddr) -> io::Result<Vec<String>> {
    let ip = ip.to_canonical();
    let mut first: *mut libc::ifaddrs = null_mut();
    // SAFETY: the function writes a pointer to a list, or returns an error.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let (mut next, mut found) = (first, BTreeSet::new());
    // SAFETY: the list's elements and their names and addresses live until `freeifaddrs`; a null pointer ends the list.
    unsafe {
        while let Some(entry) = next.as_ref() {
            next = entry.ifa_next;
            let flags = entry.ifa_flags as i32;
            let is_wanted = match address_of(entry.ifa_addr) {
                None => false,
                Some(address) if !ip.is_unspecified() => address == ip,
                Some(IpAddr::V6(v6)) if v6.is_unicast_link_local() => false,
                Some(_) => flags & libc::IFF_LOOPBACK == 0,
            };
            if is_wanted && flags & libc::IFF_UP != 0 {
                found.insert(CStr::from_ptr(entry.ifa_name).to_string_lossy().into_owned());
            }
        }
        libc::freeifaddrs(first);
    }
    Ok(found.into_iter().collect())
}

/// # Safety
/// The pointer is null, or leads to an address of the family that it names.
unsafe fn address_of(addr: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: by this function's contract.
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
    fn interfaces_with__an_address_of_loopback_and_of_no_interface() {
        assert_eq!(interfaces_with(IpAddr::from([127, 0, 0, 1])).unwrap(), ["lo"]);
        // TEST-NET-1 (RFC 5737).
        assert!(interfaces_with(IpAddr::from([192, 0, 2, 77])).unwrap().is_empty());
        let with_any = interfaces_with(Ipv4Addr::UNSPECIFIED.into()).unwrap();
        assert!(!with_any.iter().any(|name| name == "lo"));
    }
}
