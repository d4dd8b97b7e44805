//! Limits of the process: open files.

use rustix::process::{Resource, getrlimit};

use super::check::Check;

const AREA: &str = "limits";

/// Descriptors of a process with many peers: a connection per peer, and some for endpoints.
const OPEN_FILES_MIN: u64 = 1024;

pub(super) fn checks() -> Vec<Check> {
    let limit = getrlimit(Resource::Nofile);
    vec![open_files(limit.current, limit.maximum)]
}

/// Checks the limit on open files; `None` is no limit.
fn open_files(current: Option<u64>, maximum: Option<u64>) -> Check {
    let name = |value: Option<u64>| value.map_or("unlimited".to_owned(), |count| count.to_string());
    let found = format!("limit {}, at most {}", name(current), name(maximum));
    match current {
        Some(count) if count < OPEN_FILES_MIN => Check::warn(
            AREA,
            "open-files",
            found,
            format!("Every peer process takes a descriptor. {}", remedy(maximum)),
        ),
        _ => Check::ok(AREA, "open-files", found),
    }
}

/// Advises how to raise the limit. Any user may raise it up to the maximum, which only root can raise.
fn remedy(maximum: Option<u64>) -> String {
    match maximum {
        Some(maximum) if maximum < OPEN_FILES_MIN => format!(
            "Raise the maximum: `nofile` in /etc/security/limits.conf, `LimitNOFILE=` of a systemd \
             unit or `--ulimit nofile` of a container, to at least {OPEN_FILES_MIN}."
        ),
        _ => {
            format!("Raise the limit in the shell that starts it: `ulimit -n {OPEN_FILES_MIN}`.")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::Status;

    #[test]
    fn open_files__few_are_worth_a_warning() {
        let check = open_files(Some(256), Some(4096));
        assert_eq!(check.status, Status::Warn);
        assert!(check.advice.unwrap().contains("ulimit -n 1024"));
    }

    #[test]
    fn open_files__a_low_maximum_needs_another_remedy() {
        let check = open_files(Some(20), Some(20));
        assert!(check.advice.unwrap().contains("LimitNOFILE"));
    }

    #[test]
    fn open_files__many_are_fine() {
        assert_eq!(open_files(Some(1024), None).status, Status::Ok);
        assert_eq!(open_files(None, None).found, "limit unlimited, at most unlimited");
    }
}
