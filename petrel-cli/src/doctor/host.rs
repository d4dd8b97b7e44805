//! Reading and parsing `/proc` and `/sys`.
//!
//! Kernels, architectures and containers lack some of the files; therefore every reader here returns an
//! `Option`. Every parser accepts text, so tests can pass samples.

use std::fs::File;
use std::io::Read;
use std::ops::RangeInclusive;

use petrel_command::cores::parse_list;

/// Longest file read: the longest of interest, `/proc/cpuinfo` of a machine with a thousand CPUs, has some 2 MiB.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Returns the trimmed text of a file, if the file is readable.
pub(super) fn read(path: &str) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// Returns the number that a file consists of.
pub(super) fn read_number<T: std::str::FromStr>(path: &str) -> Option<T> {
    read(path)?.parse().ok()
}

/// Returns the value of the first `name: value` line, as in `/proc/meminfo`, `/proc/self/status` and `/proc/cpuinfo`.
pub(super) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then_some(value.trim())
    })
}

/// Returns a size in `/proc/meminfo`, in bytes.
pub(super) fn meminfo_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let kibibytes: u64 = field(meminfo, name)?.strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

pub(super) fn meminfo_count(meminfo: &str, name: &str) -> Option<u64> {
    field(meminfo, name)?.parse().ok()
}

/// Returns the number of CPUs in a list such as `0-3,8,10-11`; `None` for other text. Huge ranges cost
/// no time, because nothing is enumerated.
pub(super) fn cpu_list_count(list: &str) -> Option<usize> {
    let count = |range: &RangeInclusive<usize>| (range.end() - range.start()).checked_add(1);
    parse_list(list)?.iter().try_fold(0usize, |sum, range| sum.checked_add(count(range)?))
}

/// Returns the choice in brackets, as in `always [madvise] never`.
pub(super) fn bracketed(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(choice, _)| choice)
}

/// Returns true if a process's `CapEff` mask (hexadecimal) has a capability, by its number.
pub(super) fn has_capability(cap_eff: &str, capability: u32) -> bool {
    u64::from_str_radix(cap_eff.trim(), 16).is_ok_and(|mask| mask >> capability & 1 == 1)
}

/// Returns major and minor version of a kernel release such as `6.1.0-13-amd64`.
pub(super) fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "\
MemTotal:       16315680 kB
HugePages_Total:      64
HugePages_Free:       60
Hugepagesize:       2048 kB
Hugetlb:          131072 kB";

    #[test]
    fn meminfo__sizes_and_counts_are_distinguished() {
        assert_eq!(meminfo_bytes(MEMINFO, "MemTotal"), Some(16_315_680 * 1024));
        assert_eq!(meminfo_bytes(MEMINFO, "Hugepagesize"), Some(2 << 20));
        assert_eq!(meminfo_count(MEMINFO, "HugePages_Free"), Some(60));
        assert_eq!(meminfo_bytes(MEMINFO, "HugePages_Free"), None);
        assert_eq!(meminfo_count(MEMINFO, "HugePages"), None);
        assert_eq!(meminfo_bytes("MemTotal: 99999999999999999999 kB", "MemTotal"), None);
        assert_eq!(meminfo_bytes("MemTotal: 18446744073709551615 kB", "MemTotal"), None);
    }

    #[test]
    fn field__takes_the_first_of_several() {
        let cpuinfo = "processor\t: 0\nflags\t\t: fpu tsc\n\nprocessor\t: 1\nflags\t\t: fpu";
        assert_eq!(field(cpuinfo, "flags"), Some("fpu tsc"));
        assert_eq!(field(cpuinfo, "bugs"), None);
    }

    #[test]
    fn cpu_list_count__adds_up_ranges() {
        assert_eq!(cpu_list_count(""), Some(0));
        assert_eq!(cpu_list_count("0"), Some(1));
        assert_eq!(cpu_list_count("0-3,8,10-11\n"), Some(7));
        assert_eq!(cpu_list_count("0-18446744073709551615"), None);
    }

    #[test]
    fn bracketed__is_the_choice_made() {
        assert_eq!(bracketed("always [madvise] never"), Some("madvise"));
        assert_eq!(bracketed("always madvise"), None);
        assert_eq!(bracketed("always [madvise"), None);
    }

    #[test]
    fn has_capability__reads_the_mask() {
        assert!(has_capability("000001ffffffffff", 13));
        assert!(has_capability("0000000000002000", 13));
        assert!(!has_capability("0000000000002000", 12));
        assert!(!has_capability("0000000000000000", 13));
        assert!(!has_capability("no mask", 13));
    }

    #[test]
    fn kernel_version__ignores_what_distributions_append() {
        assert_eq!(kernel_version("6.1.0-13-amd64"), Some((6, 1)));
        assert_eq!(kernel_version("5.15.153.1-microsoft-standard-WSL2"), Some((5, 15)));
        assert_eq!(kernel_version("4.18"), Some((4, 18)));
        assert_eq!(kernel_version("unknown"), None);
    }

    #[test]
    fn read__of_a_missing_file_is_none() {
        assert_eq!(read("/proc/no/such/file"), None);
        assert_eq!(read("/proc"), None);
        assert_eq!(read_number::<u64>("/proc/self/stat"), None);
    }
}
