//! The size of a new memory file, within the kernel's limits.
//!
//! A limit that is found too late ends the process by a signal: SIGXFSZ for a file beyond `RLIMIT_FSIZE`, SIGBUS for a
//! page that the kernel cannot provide when it is first touched. Here each limit is an error, after which a link uses
//! another transport.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use rustix::process::{Resource, getrlimit};

/// Grows an empty memory file to this size.
///
/// A file in huge pages gets its pages at once, since the limit of a control group for huge pages holds when a page is
/// touched. A host that overcommits no memory gives other files their pages at once, too. Elsewhere pages come with the first
/// access, and cost nothing before.
///
/// # Errors
/// [`io::ErrorKind::FileTooLarge`] beyond the limit of file sizes, and the kernel's errors.
pub(crate) fn set_size(file: BorrowedFd<'_>, bytes: u64, is_huge: bool) -> io::Result<()> {
    check_limit(bytes, getrlimit(Resource::Fsize).current)?;
    ftruncate(file, bytes)?;
    if is_huge || is_overcommit_off() {
        fallocate(file, FallocateFlags::empty(), 0, bytes)?;
    }
    Ok(())
}

fn check_limit(bytes: u64, limit: Option<u64>) -> io::Result<()> {
    match limit {
        Some(limit) if limit < bytes => {
            let text = format!(
                "a memory file of {bytes} bytes exceeds this process's limit of file sizes, {limit} bytes \
                 (ulimit -f, RLIMIT_FSIZE)"
            );
            Err(io::Error::new(io::ErrorKind::FileTooLarge, text))
        }
        _ => Ok(()),
    }
}

/// Returns true if the kernel accounts for memory files page by page, and refuses a page by a signal.
fn is_overcommit_off() -> bool {
    const OFF: &[u8] = b"2";
    std::fs::read("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim_ascii() == OFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_limit__is_an_error_that_names_both_sizes() {
        for (bytes, limit) in [(0, Some(0)), (4096, Some(4096)), (u64::MAX, None)] {
            assert!(check_limit(bytes, limit).is_ok());
        }
        let error = check_limit(2_097_152, Some(65_536)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        for part in ["2097152", "65536", "ulimit -f"] {
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}
