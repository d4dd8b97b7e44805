//! Huge pages, transparent and reserved, and the limit of locked memory.

use std::io;

use petrel_command::units::format_bytes;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate};
use rustix::process::{Resource, Rlimit, getrlimit};

use super::check::Check;
use super::host::{bracketed, meminfo_bytes, meminfo_count, read};
use super::shared::new_memory_file;

const AREA: &str = "memory";

/// The size of the requested huge pages.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

pub(super) fn checks() -> Vec<Check> {
    let meminfo = read("/proc/meminfo").unwrap_or_default();
    vec![
        reserved_huge_pages(&meminfo),
        huge_page_memory(),
        transparent_huge_pages(),
        locked_memory(),
    ]
}

fn reserved_huge_pages(meminfo: &str) -> Check {
    let counts = ["HugePages_Total", "HugePages_Free"].map(|name| meminfo_count(meminfo, name));
    let [Some(total), Some(free)] = counts else {
        return Check::info(AREA, "huge-pages", "none, or not visible here");
    };
    let size =
        meminfo_bytes(meminfo, "Hugepagesize").map_or("unknown size".to_owned(), format_bytes);
    let found = format!("{free} of {total} reserved pages free, {size} each");
    if free > 0 {
        return Check::ok(AREA, "huge-pages", found);
    }
    Check::info(AREA, "huge-pages", found).advise(
        "Petrel works without; huge pages spare address translations under random access. To \
         reserve 64 of them: `sudo sysctl -w vm.nr_hugepages=64`.",
    )
}

/// Tries to allocate one huge page. The page is never touched, because touching a page beyond a
/// container's limit ends the process.
fn huge_page_memory() -> Check {
    match try_huge_page() {
        Ok(()) => Check::ok(
            AREA,
            "huge-page-memory",
            format!("a page of {} was allocated", format_bytes(HUGE_PAGE_BYTES)),
        ),
        Err(error) => {
            Check::info(AREA, "huge-page-memory", format!("none to be had, not needed: {error}"))
        }
    }
}

fn try_huge_page() -> io::Result<()> {
    let file = new_memory_file(MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB)?;
    ftruncate(&file, HUGE_PAGE_BYTES)?;
    Ok(fallocate(&file, FallocateFlags::empty(), 0, HUGE_PAGE_BYTES)?)
}

fn transparent_huge_pages() -> Check {
    const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";
    let Some(text) = read(&format!("{FOLDER}/enabled")) else {
        return Check::info(AREA, "transparent-huge-pages", "none, or not visible here");
    };
    let mode = bracketed(&text).unwrap_or("unknown");
    let shared = read(&format!("{FOLDER}/shmem_enabled"));
    let shared = shared.as_deref().and_then(bracketed).unwrap_or("unknown");
    let found = format!("{mode}; for shared memory: {shared}");
    match mode {
        "never" => Check::info(AREA, "transparent-huge-pages", found).advise(format!(
            "Let programs ask for them: `echo madvise | sudo tee {FOLDER}/enabled`."
        )),
        _ => Check::ok(AREA, "transparent-huge-pages", found),
    }
}

/// Reports the limit; only transports that share memory with a device lock memory.
fn locked_memory() -> Check {
    let found = describe(getrlimit(Resource::Memlock));
    Check::info(AREA, "locked-memory", format!("{found}; UDP and shared memory lock none"))
}

fn describe(limit: Rlimit) -> String {
    let name = |value: Option<u64>| value.map_or("unlimited".to_owned(), format_bytes);
    format!("limit {}, at most {}", name(limit.current), name(limit.maximum))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::Status;

    #[test]
    fn reserved_huge_pages__says_how_many_are_free() {
        let meminfo = "HugePages_Total: 64\nHugePages_Free: 60\nHugepagesize: 2048 kB";
        let check = reserved_huge_pages(meminfo);
        assert_eq!(check.status, Status::Ok);
        assert_eq!(check.found, "60 of 64 reserved pages free, 2.00 MiB each");
    }

    #[test]
    fn reserved_huge_pages__none_free_is_no_defect() {
        let meminfo = "HugePages_Total: 0\nHugePages_Free: 0\nHugepagesize: 2048 kB";
        let check = reserved_huge_pages(meminfo);
        assert_eq!(check.status, Status::Info);
        assert!(check.advice.unwrap().contains("vm.nr_hugepages"));
        assert_eq!(reserved_huge_pages("").status, Status::Info);
    }

    #[test]
    fn describe__names_the_absence_of_a_limit() {
        let limit = Rlimit { current: Some(8 << 20), maximum: None };
        assert_eq!(describe(limit), "limit 8.00 MiB, at most unlimited");
    }
}
