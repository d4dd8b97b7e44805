//! Ways around the kernel's network stack. Petrel does not need any; the checks serve users who plan to
//! bypass the kernel.

use std::fs;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::check::Check;
use super::host::{field, has_capability, read};

const AREA: &str = "bypass";

/// Capabilities that kernel bypass needs, by number (capabilities(7)).
const CAPABILITIES: [(u32, &str); 5] = [
    (12, "CAP_NET_ADMIN"),
    (13, "CAP_NET_RAW"),
    (14, "CAP_IPC_LOCK"),
    (21, "CAP_SYS_ADMIN"),
    (39, "CAP_BPF"),
];

/// The most devices named in a finding; further devices are only counted.
const NAMES_MAX: usize = 8;

pub(super) fn checks() -> Vec<Check> {
    vec![af_xdp(), capabilities(), huge_page_mounts(), rdma_devices()]
}

fn af_xdp() -> Check {
    let tried = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None);
    let found = match tried {
        Ok(_) => "an AF_XDP socket was made".to_owned(),
        Err(Errno::PERM) => {
            "the kernel may have AF_XDP; making a socket needs CAP_NET_RAW".to_owned()
        }
        Err(Errno::AFNOSUPPORT) => "this kernel has no AF_XDP".to_owned(),
        Err(error) => format!("no AF_XDP socket: {error}"),
    };
    Check::info(AREA, "af-xdp", found)
}

fn capabilities() -> Check {
    let status = read("/proc/self/status").unwrap_or_default();
    let held = field(&status, "CapEff").map(held_capabilities);
    let found = match held {
        None => "unknown".to_owned(),
        Some(held) if held.is_empty() => "none of those that kernel bypass uses".to_owned(),
        Some(held) => held.join(", "),
    };
    let bpf = match read("/proc/sys/kernel/unprivileged_bpf_disabled").as_deref() {
        Some("0") => "allowed",
        Some(_) => "not allowed",
        None => "unknown",
    };
    Check::info(AREA, "capabilities", format!("{found}; BPF without privileges: {bpf}"))
}

fn held_capabilities(cap_eff: &str) -> Vec<&'static str> {
    let held = CAPABILITIES.iter().filter(|(number, _)| has_capability(cap_eff, *number));
    held.map(|(_, name)| *name).collect()
}

fn huge_page_mounts() -> Check {
    let mounts = read("/proc/self/mounts").unwrap_or_default();
    let folders = hugetlbfs_folders(&mounts);
    let found = match folders.is_empty() {
        true => "no hugetlbfs is mounted".to_owned(),
        false => format!("hugetlbfs on {}", abbreviate(&folders)),
    };
    Check::info(AREA, "dpdk-huge-page-mount", found)
}

fn hugetlbfs_folders(mounts: &str) -> Vec<String> {
    let fields = mounts.lines().map(|line| line.split_ascii_whitespace());
    fields
        .filter_map(|mut fields| {
            let folder = fields.nth(1)?;
            (fields.next()? == "hugetlbfs").then(|| folder.to_owned())
        })
        .collect()
}

fn rdma_devices() -> Check {
    let devices = folder_entries("/sys/class/infiniband");
    let found = match devices.is_empty() {
        true => "none".to_owned(),
        false => abbreviate(&devices),
    };
    Check::info(AREA, "rdma-devices", found)
}

/// Returns the sorted names in a folder; empty for a missing folder.
fn folder_entries(path: &str) -> Vec<String> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

fn abbreviate(names: &[String]) -> String {
    let shown = names.iter().take(NAMES_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMES_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hugetlbfs_folders__reads_the_type_not_the_name() {
        let mounts = "\
sysfs /sys sysfs rw 0 0
hugetlbfs /dev/hugepages hugetlbfs rw,relatime,pagesize=2M 0 0
none /mnt/huge hugetlbfs rw 0 0
hugetlbfs /not/that tmpfs rw 0 0
broken";
        assert_eq!(hugetlbfs_folders(mounts), ["/dev/hugepages", "/mnt/huge"]);
    }

    #[test]
    fn held_capabilities__are_named() {
        assert_eq!(held_capabilities("0000000000003000"), ["CAP_NET_ADMIN", "CAP_NET_RAW"]);
        assert!(held_capabilities("0000000000000000").is_empty());
        assert!(held_capabilities("").is_empty());
    }

    #[test]
    fn abbreviate__counts_what_it_leaves_out() {
        let names: Vec<String> = (0..10).map(|index| format!("mlx5_{index}")).collect();
        assert!(abbreviate(&names).ends_with("mlx5_7 and 2 more"));
        assert_eq!(abbreviate(&names[..2]), "mlx5_0, mlx5_1");
    }

    #[test]
    fn folder_entries__of_a_missing_folder_are_none() {
        assert!(folder_entries("/sys/class/no-such-class").is_empty());
    }
}
