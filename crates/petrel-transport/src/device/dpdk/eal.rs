//! DPDK in this process: the library is started once, and never ended.

use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::thread::{CpuSet, sched_getaffinity};

use super::shared::Shared;
use super::table::{self, PortInfo, Queues, Table};

/// Wishes for frames that a port holds, in each direction.
const RING_FRAMES: u16 = 1024;

/// Buffers of the process: both rings of the port, and the inboxes of several endpoints. 19 MB: without huge pages, DPDK has 64.
const BUFFERS: u32 = 8191;

/// Options that choose processors.
const CORES: [&str; 6] = ["-l", "-c", "-s", "-S", "--lcores", "--main-lcore"];

/// The arguments, and the result.
type Started = (String, Result<Arc<Shared>, String>);

static STARTED: Mutex<Option<Started>> = Mutex::new(None);

/// Starts DPDK with the arguments, and takes the only port. Later calls return the port of the first one.
pub(super) fn start(arguments: &str) -> Result<Arc<Shared>, String> {
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    let (with, result) = match &*started {
        Some(earlier) => earlier,
        None => {
            let result = on_thread(arguments, |table, words| match start_eal(table, words)?[..] {
                [one] => share(table, one, words),
                _ => Err(format!("DPDK finds several devices by `{words}`: choose one by -a")),
            });
            started.insert((arguments.to_owned(), result?))
        }
    };
    if with != arguments {
        return Err(format!("this process has started DPDK with other arguments: {with}"));
    }
    result.clone()
}

/// Starts DPDK with the arguments of two devices. Later calls of [`start`] return the port of the first device.
pub(super) fn start_with_bare(arguments: &str) -> Result<(Queues, PortInfo), String> {
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((with, _)) = &*started {
        return Err(format!("this process has started DPDK already: {with}"));
    }
    let (shared, bare) =
        on_thread(arguments, |table, words| match start_eal(table, words)?[..] {
            [first, second] => {
                let shared = share(table, first, words)?;
                Ok((shared, take(table, second, words)?))
            }
            _ => Err(format!("DPDK finds not two devices by `{words}`")),
        })??;
    *started = Some((arguments.to_owned(), Ok(shared)));
    Ok(bare)
}

/// Runs `work` with the shim and the arguments. A library that is missing may be made meanwhile: only DPDK's own answer is kept.
fn on_thread<T: Send + 'static>(
    arguments: &str,
    work: fn(&'static Table, &str) -> Result<T, String>,
) -> Result<Result<T, String>, String> {
    let table = table::load()?;
    let words = arguments.to_owned();
    // DPDK pins the thread that starts the library.
    let thread = thread::spawn(move || work(table, &words));
    Ok(thread.join().unwrap_or_else(|_| Err("DPDK panics".to_owned())))
}

/// Returns the ports, of which there is one at least.
fn start_eal(table: &'static Table, arguments: &str) -> Result<Vec<u16>, String> {
    table.start_eal(words(arguments)?).map_err(|error| {
        format!(
            "DPDK does not start with `{arguments}`: {error}; the lines on the standard error say more, and \
             docs/kernel-bypass.md has arguments that work without rights"
        )
    })?;
    match table.ports() {
        none if none.is_empty() => {
            Err(format!("DPDK finds no device by `{arguments}`: name one by --vdev or -a"))
        }
        ports => Ok(ports),
    }
}

fn take(table: &'static Table, port: u16, arguments: &str) -> Result<(Queues, PortInfo), String> {
    let cannot = |error| format!("DPDK cannot use the device of `{arguments}`: {error}");
    let mut info = table.describe(port).map_err(cannot)?;
    (info.receive_frames, info.send_frames) = (RING_FRAMES, RING_FRAMES);
    let queues = table.queues(port, &mut info, BUFFERS).map_err(cannot)?;
    Ok((queues, info))
}

fn share(table: &'static Table, port: u16, arguments: &str) -> Result<Arc<Shared>, String> {
    let (queues, info) = take(table, port, arguments)?;
    // A net_memif is a client by default, and looks for its peer when the port is started.
    let connects = arguments.contains("net_memif") && !arguments.contains("role=server");
    Ok(Arc::new(Shared::new(table, info, queues, connects)))
}

/// Returns the arguments of the library: the program's name, few lines on the standard error, one thread on any processor of this process, and
/// the setting's.
fn words(arguments: &str) -> Result<Vec<CString>, String> {
    // net_memif tells of each attempt to meet a peer.
    let few = ["petrel", "--log-level=error", "--log-level=pmd.net.memif:critical"];
    let mut words: Vec<String> = few.map(str::to_owned).into();
    if !arguments.split_whitespace().any(|word| CORES.iter().any(|option| word.starts_with(option)))
    {
        words.push(format!("--lcores=0@({})", processors()?));
    }
    words.extend(arguments.split_whitespace().map(str::to_owned));
    let to_c = |word| CString::new(word).map_err(|_| "an argument contains a zero byte".to_owned());
    words.into_iter().map(to_c).collect()
}

fn processors() -> Result<String, String> {
    let set = sched_getaffinity(None).map_err(|error| format!("no processors: {error}"))?;
    let numbers = (0..CpuSet::MAX_CPU).filter(|number| set.is_set(*number));
    Ok(numbers.map(|number| number.to_string()).collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words__choose_processors_unless_the_setting_does() {
        let said = |arguments| {
            let words = words(arguments).unwrap();
            words.into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>()
        };
        let usual = said(" --no-huge  --no-pci ");
        assert!(usual[3].starts_with("--lcores=0@(") && usual[4..] == ["--no-huge", "--no-pci"]);
        assert_eq!(said("-l 3")[3..], ["-l", "3"]);
        assert!(words("a\0b").is_err());
    }
}
