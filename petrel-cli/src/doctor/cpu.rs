//! CPUs: their number, their isolation, and whether this process may reserve them.

mod quota;

use std::collections::BTreeSet;
use std::fs;
use std::thread;

use petrel_command::cores::CpuPlacement;
use rustix::process::{Resource, getrlimit};
use rustix::thread::sched_getaffinity;

use self::quota::cpu_quota;
use super::check::Check;
use super::host::{cpu_list_count, read};

const AREA: &str = "cpu";

const CPU_FOLDER: &str = "/sys/devices/system/cpu";

pub(super) fn checks() -> Vec<Check> {
    vec![count(), quota(), isolation(), siblings(), governor(), real_time()]
}

fn count() -> Check {
    let usable = sched_getaffinity(None).map_or(1, |set| set.count());
    let online = read(&format!("{CPU_FOLDER}/online"));
    let online = online.as_deref().and_then(cpu_list_count);
    judge_count(usable as usize, online)
}

fn judge_count(usable: usize, online: Option<usize>) -> Check {
    let found = match online {
        Some(online) => format!("{usable} usable of {online} online"),
        None => format!("{usable} usable"),
    };
    match usable {
        0 | 1 => Check::warn(
            AREA,
            "cpu-count",
            found,
            "Two ends that poll on one CPU keep each other waiting: use `--idle block`, or give \
             the process a second CPU.",
        ),
        _ => Check::ok(AREA, "cpu-count", found),
    }
}

fn quota() -> Check {
    match cpu_quota() {
        Some(quota) => Check::warn(
            AREA,
            "cpu-quota",
            format!("{:.2} CPUs, counted per {} us", quota.cpus(), quota.period_us),
            "A polling thread spends the quota and is then stopped until the period ends, which \
             shows as calls of many milliseconds. Raise the container's CPU limit to whole CPUs, \
             one per polling thread and one more, or remove it; or use `--idle block`.",
        ),
        None if read("/proc/self/cgroup").is_none() => {
            Check::info(AREA, "cpu-quota", "unknown: /proc/self/cgroup is not readable")
        }
        None => Check::ok(AREA, "cpu-quota", "none"),
    }
}

fn isolation() -> Check {
    let [isolated, tickless] =
        ["isolated", "nohz_full"].map(|file| read(&format!("{CPU_FOLDER}/{file}")));
    let online = read(&format!("{CPU_FOLDER}/online"));
    let online = online.as_deref().and_then(cpu_list_count).unwrap_or(0);
    judge_isolation(isolated.as_deref(), tickless.as_deref(), online)
}

/// Fewest CPUs of which two can be isolated: the others run everything else.
const ISOLATION_CPUS_MIN: usize = 4;

fn judge_isolation(isolated: Option<&str>, tickless: Option<&str>, online: usize) -> Check {
    let Some(isolated) = isolated else {
        return Check::info(AREA, "cpu-isolation", "unknown: sysfs does not tell");
    };
    // The kernel writes an empty list, or "(null)" if the feature was never configured.
    let named = |list: &str| cpu_list_count(list).unwrap_or(0) > 0;
    let isolated = Some(isolated).filter(|list| named(list));
    let tickless = tickless.filter(|list| named(list)).unwrap_or("none");
    let found =
        format!("isolated: {}; without timer ticks: {tickless}", isolated.unwrap_or("none"));
    let check = Check::info(AREA, "cpu-isolation", found);
    if isolated.is_some() || online < ISOLATION_CPUS_MIN {
        return check;
    }
    let (first, last) = (online - 2, online - 1);
    check.advise(format!(
        "Only for machines dedicated to it: boot with `isolcpus={first}-{last} nohz_full={first}-{last}` and \
         pin the endpoints' threads there. The slowest calls become faster."
    ))
}

fn siblings() -> Check {
    let active = read(&format!("{CPU_FOLDER}/smt/active"));
    let found = match active.as_deref() {
        Some("1") => "on: pairs of CPUs share a core and its speed",
        Some(_) => "off: every CPU is a core",
        None => "unknown: sysfs does not tell",
    };
    let check = Check::info(AREA, "smt-siblings", found);
    if active.as_deref() != Some("1") {
        return check;
    }
    check.advise(format!(
        "Place endpoints that poll on different cores: `cat \
         {CPU_FOLDER}/cpu*/topology/thread_siblings_list | sort -u` lists which CPUs share one."
    ))
}

fn governor() -> Check {
    let governors = governors();
    if governors.is_empty() {
        return Check::info(AREA, "frequency-governor", "none: the host or hypervisor decides");
    }
    let found = governors.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    if governors.iter().all(|name| name == "performance") {
        return Check::ok(AREA, "frequency-governor", found);
    }
    Check::info(AREA, "frequency-governor", found).advise(
        "For steady latencies: `echo performance | sudo tee \
         /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor`.",
    )
}

fn governors() -> BTreeSet<String> {
    let Ok(folder) = fs::read_dir(CPU_FOLDER) else {
        return BTreeSet::new();
    };
    folder
        .flatten()
        .filter_map(|entry| entry.path().join("cpufreq/scaling_governor").to_str().and_then(read))
        .collect()
}

/// Tries real-time scheduling on a temporary thread.
fn real_time() -> Check {
    let allowed = thread::Builder::new()
        .spawn(|| CpuPlacement { cpu: None, is_realtime: true }.apply().is_ok())
        .is_ok_and(|trial| trial.join().unwrap_or(false));
    let limit = getrlimit(Resource::Rtprio).current;
    let limit = limit.map_or("unlimited".to_owned(), |priority| priority.to_string());
    if allowed {
        let found = format!("allowed (priority limit {limit})");
        return Check::info(AREA, "real-time-scheduling", found);
    }
    let found = format!("not allowed (priority limit {limit})");
    Check::info(AREA, "real-time-scheduling", found).advise(
        "Petrel does not need it. A benchmark on a shared machine gains steadier results: give the \
         user `rtprio 10` in /etc/security/limits.conf.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::Status;

    #[test]
    fn judge_count__one_cpu_is_worth_a_warning() {
        assert_eq!(judge_count(1, Some(8)).status, Status::Warn);
        let check = judge_count(2, Some(8));
        assert_eq!((check.status, check.found.as_str()), (Status::Ok, "2 usable of 8 online"));
        assert_eq!(judge_count(2, None).found, "2 usable");
    }

    #[test]
    fn judge_isolation__names_no_cpus_that_do_not_exist() {
        for online in 0..4 {
            assert_eq!(judge_isolation(Some(""), Some(""), online).advice, None, "{online}");
        }
        let advice = judge_isolation(Some(""), Some(""), 4).advice.unwrap();
        assert!(advice.contains("isolcpus=2-3"), "{advice}");
    }

    #[test]
    fn judge_isolation__advises_only_where_nothing_is_isolated() {
        let check = judge_isolation(Some("2-3"), Some("2-3"), 4);
        assert_eq!(check.found, "isolated: 2-3; without timer ticks: 2-3");
        assert_eq!(check.advice, None);
        let check = judge_isolation(Some(""), Some("(null)"), 8);
        assert_eq!(check.found, "isolated: none; without timer ticks: none");
        assert!(check.advice.unwrap().contains("isolcpus=6-7 nohz_full=6-7"));
        assert_eq!(judge_isolation(None, None, 8).advice, None);
    }
}
