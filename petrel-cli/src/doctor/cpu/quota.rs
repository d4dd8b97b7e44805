//! The CPU quota of this process's control group, and of its ancestors.
//!
//! Version 2 of control groups writes quota and period into `cpu.max`, version 1 into two files. `/proc/self/cgroup`
//! names the group. Inside a container the path may be an outer path without mounted folders. Therefore missing folders
//! are skipped in the search up to the root, where a container finds its group.

use super::super::host::{read, read_number};

/// Mount points of version 1: together with CPU accounting, or alone.
const V1_MOUNTS: [&str; 2] = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"];

/// Mount points of version 2: alone, or beside version 1.
const V2_MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// Microseconds of CPU time in every period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quota {
    pub(super) quota_us: u64,
    pub(super) period_us: u64,
}

impl Quota {
    /// Returns the number of CPUs that the quota amounts to.
    pub(super) fn cpus(self) -> f64 {
        self.quota_us as f64 / self.period_us as f64
    }
}

/// Returns the tightest quota that applies to this process, if any.
pub(super) fn cpu_quota() -> Option<Quota> {
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let version_2 = group_v2(&groups).into_iter().flat_map(|group| {
        let folders = V2_MOUNTS.iter().flat_map(move |mount| folders_upwards(mount, group));
        folders.filter_map(|folder| parse_cpu_max(&read(&format!("{folder}/cpu.max"))?))
    });
    let version_1 = group_v1(&groups).into_iter().flat_map(|group| {
        let folders = V1_MOUNTS.iter().flat_map(move |mount| folders_upwards(mount, group));
        folders.filter_map(|folder| {
            let quota_us = read_number::<i64>(&format!("{folder}/cpu.cfs_quota_us"))?;
            from_v1(quota_us, read_number(&format!("{folder}/cpu.cfs_period_us"))?)
        })
    });
    version_2.chain(version_1).min_by(|left, right| left.cpus().total_cmp(&right.cpus()))
}

/// Returns the group's path in `/proc/self/cgroup` for version 2: the line `0::PATH`.
fn group_v2(groups: &str) -> Option<&str> {
    groups.lines().find_map(|line| line.strip_prefix("0::"))
}

/// Returns the group's path for version 1: the line whose list of controllers has `cpu`.
fn group_v1(groups: &str) -> Option<&str> {
    groups.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers.split(',').any(|name| name == "cpu").then_some(path)
    })
}

/// Returns the folder of a group and its ancestors, up to the mount point. A process with a group
/// outside of its namespace sees a path with `..`, which stands for the mount point.
fn folders_upwards<'a>(mount: &'a str, group: &'a str) -> impl Iterator<Item = String> + use<'a> {
    let group = if group.contains("..") { "" } else { group.trim_matches('/') };
    let mut below = (!group.is_empty()).then_some(group);
    let parents = std::iter::from_fn(move || {
        let path = below?;
        below = path.rsplit_once('/').map(|(parent, _)| parent);
        Some(format!("{mount}/{path}"))
    });
    parents.chain([mount.to_owned()])
}

/// Parses `cpu.max`: quota and period, or `max` for no quota.
fn parse_cpu_max(text: &str) -> Option<Quota> {
    let (quota, period) = text.trim().split_once(char::is_whitespace)?;
    valid(quota.parse().ok()?, period.trim().parse().ok()?)
}

/// Converts version 1's numbers, where -1 means no quota.
fn from_v1(quota_us: i64, period_us: u64) -> Option<Quota> {
    valid(u64::try_from(quota_us).ok()?, period_us)
}

fn valid(quota_us: u64, period_us: u64) -> Option<Quota> {
    (quota_us > 0 && period_us > 0).then_some(Quota { quota_us, period_us })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_cpu_max__reads_quota_and_period() {
        let quota = parse_cpu_max("150000 100000\n").unwrap();
        assert_eq!(quota, Quota { quota_us: 150_000, period_us: 100_000 });
        assert_eq!(quota.cpus(), 1.5);
    }

    #[test]
    fn parse_cpu_max__no_quota_and_nonsense_are_none() {
        for text in ["max 100000", "", "100000", "1 0", "0 100000", "-1 100000", "a b"] {
            assert_eq!(parse_cpu_max(text), None, "{text}");
        }
    }

    #[test]
    fn from_v1__negative_is_no_quota() {
        assert_eq!(from_v1(-1, 100_000), None);
        assert_eq!(from_v1(50_000, 100_000).unwrap().cpus(), 0.5);
    }

    #[test]
    fn groups__are_found_for_both_versions() {
        let groups = "4:memory:/jobs\n2:cpu,cpuacct:/jobs/a:b\n1:cpuset:/x\n0::/user.slice/s";
        assert_eq!(group_v1(groups), Some("/jobs/a:b"));
        assert_eq!(group_v2(groups), Some("/user.slice/s"));
        assert_eq!(group_v1("1:cpuset:/x"), None);
        assert_eq!(group_v2(""), None);
    }

    #[test]
    fn folders_upwards__end_at_the_mount() {
        let folders: Vec<_> = folders_upwards("/m", "/a/b").collect();
        assert_eq!(folders, ["/m/a/b", "/m/a", "/m"]);
        assert_eq!(folders_upwards("/m", "/").collect::<Vec<_>>(), ["/m"]);
        assert_eq!(folders_upwards("/m", "/../x").collect::<Vec<_>>(), ["/m"]);
    }
}
