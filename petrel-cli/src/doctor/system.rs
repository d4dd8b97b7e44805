//! Kernel, container and virtual machine: the environment of the other findings.

use std::path::Path;

use super::check::Check;
use super::host::{field, kernel_version, read};

const AREA: &str = "system";

/// The first kernel with all features of the UDP transport: GSO came with 4.18, GRO with 5.0.
const KERNEL_MIN: (u32, u32) = (5, 0);

pub(super) fn checks() -> Vec<Check> {
    vec![kernel(), container(), virtual_machine()]
}

fn kernel() -> Check {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let found = format!("Linux {release} on {}", uname.machine().to_string_lossy());
    match kernel_version(&release) {
        Some(version) if version < KERNEL_MIN => Check::warn(
            AREA,
            "kernel",
            found,
            "Use Linux 5.0 or later: older ones lack UDP GRO, and before 4.18 also UDP GSO.",
        ),
        _ => Check::ok(AREA, "kernel", found),
    }
}

fn container() -> Check {
    let found = match container_kind() {
        Some(kind) => format!("inside {kind}; limits and sysctls may be those of the container"),
        None => "none recognised".to_owned(),
    };
    Check::info(AREA, "container", found)
}

fn container_kind() -> Option<&'static str> {
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        Some("a Kubernetes pod")
    } else if Path::new("/.dockerenv").exists() {
        Some("a Docker container")
    } else if Path::new("/run/.containerenv").exists() {
        Some("a Podman container")
    } else {
        read("/run/systemd/container").map(|_| "a container")
    }
}

fn virtual_machine() -> Check {
    let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
    let found = if is_virtual(&cpuinfo) {
        "yes: other guests of the machine can lengthen the slowest calls"
    } else {
        "none recognised"
    };
    Check::info(AREA, "virtual-machine", found)
}

/// Returns true in a virtual machine: x86 processors report a hypervisor to guests.
fn is_virtual(cpuinfo: &str) -> bool {
    field(cpuinfo, "flags")
        .is_some_and(|flags| flags.split_ascii_whitespace().any(|flag| flag == "hypervisor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_virtual__needs_the_whole_flag() {
        assert!(is_virtual("processor\t: 0\nflags\t\t: fpu hypervisor lahf_lm"));
        assert!(!is_virtual("flags\t\t: fpu hypervisor_not lahf_lm"));
        assert!(!is_virtual(""));
    }
}
