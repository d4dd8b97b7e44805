//! Detects whether two processes can share memory by a [`Rendezvous`](super::Rendezvous).

use std::io;
use std::os::unix::fs::MetadataExt;

use super::rendezvous::MeetingDir;

/// Bytes of a [`host_identity`].
pub const HOST_IDENTITY_BYTES: usize = 32;

/// Returns a value that is equal in two processes exactly if kernel, boot, network namespace (the
/// scope of abstract sockets), user namespace and user are equal.
///
/// The value is no secret, but identifies the host: exchange it with peers, not with the world.
///
/// | bytes | contents |
/// | --- | --- |
/// | 0 to 15 | the kernel's boot identifier |
/// | 16 to 23 | number of the network namespace |
/// | 24 to 27 | number of the user namespace |
/// | 28 to 31 | effective user |
///
/// # Errors
/// When `/proc` does not provide the values: shared memory should then not be offered.
pub fn host_identity() -> io::Result<[u8; HOST_IDENTITY_BYTES]> {
    let boot = parse_boot_id(&std::fs::read("/proc/sys/kernel/random/boot_id")?)?;
    let network = namespace_number("net")?;
    // The kernel numbers namespaces with 32 bits.
    let user = u32::try_from(namespace_number("user")?).map_err(|_| malformed())?;
    let mut identity = [0; HOST_IDENTITY_BYTES];
    identity[..16].copy_from_slice(&boot);
    identity[16..24].copy_from_slice(&network.to_le_bytes());
    identity[24..28].copy_from_slice(&user.to_le_bytes());
    identity[28..].copy_from_slice(&rustix::process::geteuid().as_raw().to_le_bytes());
    Ok(identity)
}

/// Returns a value, equal in two processes exactly if both run on a single boot of a kernel, in a user namespace, as a
/// user or for the directory's group, and see the same directory. Their network namespaces may differ: the two meet in the directory.
///
/// | bytes | contents |
/// | --- | --- |
/// | 0 to 7 | the first half of the kernel's boot identifier |
/// | 8 to 15 | the device of the directory |
/// | 16 to 23 | the number of the directory on its device |
/// | 24 to 27 | as in [`host_identity`] |
/// | 28 to 31 | effective user, or the directory's group if the directory is [for a group](MeetingDir::group) |
///
/// # Errors
/// As [`host_identity`].
pub fn host_identity_in(directory: &MeetingDir) -> io::Result<[u8; HOST_IDENTITY_BYTES]> {
    let mut identity = host_identity()?;
    let (device, inode) = directory.numbers()?;
    identity[8..16].copy_from_slice(&device.to_le_bytes());
    identity[16..24].copy_from_slice(&inode.to_le_bytes());
    if let Some(group) = directory.group() {
        identity[28..].copy_from_slice(&group.to_le_bytes());
    }
    Ok(identity)
}

fn namespace_number(kind: &str) -> io::Result<u64> {
    // The link leads to the namespace's file, with the number as inode.
    Ok(std::fs::metadata(format!("/proc/self/ns/{kind}"))?.ino())
}

/// Reads a UUID in its usual form: 32 hexadecimal digits with dashes between.
fn parse_boot_id(text: &[u8]) -> io::Result<[u8; 16]> {
    let mut digits = text
        .trim_ascii()
        .iter()
        .filter(|&&c| c != b'-')
        .map(|&c| char::from(c).to_digit(16).map(|digit| digit as u8).ok_or_else(malformed));
    let mut boot = [0; 16];
    for byte in &mut boot {
        let mut next = || digits.next().unwrap_or_else(|| Err(malformed()));
        *byte = next()? << 4 | next()?;
    }
    if digits.next().is_some() { Err(malformed()) } else { Ok(boot) }
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the kernel's identity files have an unknown form")
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn host_identity__is_the_same_every_time_and_names_the_user() {
        let identity = host_identity().unwrap();
        assert_eq!(identity, host_identity().unwrap());
        assert_ne!(identity[..16], [0; 16]);
        assert_eq!(identity[28..], rustix::process::geteuid().as_raw().to_le_bytes());
    }

    #[test]
    fn parse_boot_id__takes_a_uuid_and_nothing_else() {
        let boot = parse_boot_id(b"00112233-4455-6677-8899-aabbccddeeff\n").unwrap();
        assert_eq!(boot[..3], [0x00, 0x11, 0x22]);
        assert_eq!(boot[15], 0xff);
        for text in [&b""[..], b"0011", b"00112233-4455-6677-8899-aabbccddeeffaa", b"zz"] {
            assert!(parse_boot_id(text).is_err());
        }
    }
}
