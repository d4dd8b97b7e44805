//! Clocks: reading the time must not need a system call.

use super::check::Check;
use super::host::{field, read};

const AREA: &str = "clock";

/// Clock sources that programs read without entering the kernel.
const FAST_SOURCES: [&str; 6] = [
    "tsc",
    "kvm-clock",
    "hyperv_clocksource_tsc_page",
    "arch_sys_counter",
    "riscv_clocksource",
    "timebase",
];

pub(super) fn checks() -> Vec<Check> {
    let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
    vec![time_stamp_counter(&cpuinfo), clock_source()]
}

fn time_stamp_counter(cpuinfo: &str) -> Check {
    if !cfg!(target_arch = "x86_64") {
        return Check::info(AREA, "time-stamp-counter", "not an x86 processor: not used");
    }
    match tsc_kind(cpuinfo) {
        Some(Tsc::Invariant) => Check::ok(
            AREA,
            "time-stamp-counter",
            "invariant: it runs at one speed and does not stop",
        ),
        Some(Tsc::Varying) => Check::warn(
            AREA,
            "time-stamp-counter",
            "not invariant: it may change speed or stop when the processor saves power",
            "Petrel then reads the kernel's clock, which takes longer. In a virtual machine, pass \
             the counter through (with QEMU: `-cpu host,+invtsc`).",
        ),
        None => Check::info(AREA, "time-stamp-counter", "unknown: /proc/cpuinfo lists no flags"),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tsc {
    Invariant,
    Varying,
}

fn tsc_kind(cpuinfo: &str) -> Option<Tsc> {
    let flags = field(cpuinfo, "flags")?;
    let has = |name| flags.split_ascii_whitespace().any(|flag| flag == name);
    let invariant = has("constant_tsc") && has("nonstop_tsc");
    Some(if invariant { Tsc::Invariant } else { Tsc::Varying })
}

fn clock_source() -> Check {
    const FOLDER: &str = "/sys/devices/system/clocksource/clocksource0";
    let current = read(&format!("{FOLDER}/current_clocksource"));
    let available = read(&format!("{FOLDER}/available_clocksource")).unwrap_or_default();
    judge_source(current.as_deref(), &available)
}

fn judge_source(current: Option<&str>, available: &str) -> Check {
    let Some(current) = current.filter(|name| !name.is_empty()) else {
        return Check::info(AREA, "clock-source", "unknown: sysfs does not tell");
    };
    let found = format!("{current} (available: {available})");
    if FAST_SOURCES.contains(&current) {
        return Check::ok(AREA, "clock-source", found);
    }
    let remedy = if available.split_ascii_whitespace().any(|name| name == "tsc") {
        "Switch: `echo tsc | sudo tee \
         /sys/devices/system/clocksource/clocksource0/current_clocksource`."
    } else {
        "The kernel offers no better one; `dmesg | grep -i clocksource` may say why."
    };
    let advice = format!("Every reading of this clock is a system call. {remedy}");
    Check::warn(AREA, "clock-source", found, advice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::Status;

    #[test]
    fn tsc_kind__needs_both_flags() {
        assert_eq!(tsc_kind("flags : tsc constant_tsc nonstop_tsc"), Some(Tsc::Invariant));
        assert_eq!(tsc_kind("flags : tsc constant_tsc"), Some(Tsc::Varying));
        assert_eq!(tsc_kind("Features : fp asimd"), None);
    }

    #[test]
    fn judge_source__slow_ones_are_warned_of() {
        assert_eq!(judge_source(Some("tsc"), "tsc hpet").status, Status::Ok);
        let slow = judge_source(Some("hpet"), "tsc hpet acpi_pm");
        assert_eq!(slow.status, Status::Warn);
        assert!(slow.advice.unwrap().contains("echo tsc"));
        let stuck = judge_source(Some("xen"), "xen");
        assert!(stuck.advice.unwrap().contains("dmesg"));
        assert_eq!(judge_source(None, "").status, Status::Info);
    }
}
