//! Interrupts of network cards: how long a card holds them back, and whether sockets poll the card instead.
//!
//! A packet that arrives alone waits for the card's interrupt. An endpoint that polls its socket does not make the
//! kernel look at the card, unless busy polling is on.

use std::fs;

use super::check::Check;
use super::host::read_number;
use super::sys::interrupt_coalescing;

const AREA: &str = "udp";

/// Time that a card may hold an interrupt back without a warning: a tenth of a round trip over two hosts' kernels.
const HELD_BACK_US_MAX: u32 = 5;

/// Microseconds of busy polling that the advice names; longer than a card needs from wire to memory.
const BUSY_POLL_US: u32 = 50;

pub(super) fn checks() -> Vec<Check> {
    let devices = physical_devices();
    let held: Vec<_> = devices
        .iter()
        .map(|device| (device.clone(), interrupt_coalescing(device).ok().map(Coalescing::of)))
        .collect();
    vec![coalescing(&held), busy_polling(read_number(BUSY_READ), devices.is_empty())]
}

const BUSY_READ: &str = "/proc/sys/net/core/busy_read";

/// How a card holds its receive interrupts back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Coalescing {
    usecs: u32,
    frames: u32,
    is_adaptive: bool,
}

impl Coalescing {
    /// Reads the words of `struct ethtool_coalesce`.
    fn of(words: [u32; 23]) -> Self {
        Self { usecs: words[1], frames: words[2], is_adaptive: words[10] != 0 }
    }

    fn describe(self) -> String {
        let adaptive = if self.is_adaptive { ", adaptive" } else { "" };
        format!("{} us or {} frames{adaptive}", self.usecs, self.frames)
    }

    /// Returns true if the card delays frames: a card that interrupts for each frame does not, whatever its time.
    fn holds_back(self) -> bool {
        self.frames != 1 && (self.is_adaptive || self.usecs > HELD_BACK_US_MAX)
    }
}

/// Returns the network devices with hardware behind them, sorted.
fn physical_devices() -> Vec<String> {
    let entries = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter(|entry| entry.path().join("device").exists())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort_unstable();
    names
}

fn coalescing(devices: &[(String, Option<Coalescing>)]) -> Check {
    const NAME: &str = "interrupt-coalescing";
    if devices.is_empty() {
        return Check::info(AREA, NAME, "no network card is visible here");
    }
    let describe = |(name, held): &(String, Option<Coalescing>)| match held {
        Some(held) => format!("{name}: {}", held.describe()),
        None => format!("{name}: its driver does not say"),
    };
    let found = devices.iter().map(describe).collect::<Vec<_>>().join("; ");
    let slow = devices.iter().filter(|(_, held)| held.is_some_and(Coalescing::holds_back));
    let slow: Vec<String> = slow
        .map(|(name, _)| format!("`sudo ethtool -C {name} adaptive-rx off rx-usecs 0`"))
        .collect();
    match slow.is_empty() {
        true => Check::info(AREA, NAME, found),
        false => Check::info(AREA, NAME, found).advise(format!(
            "A packet that arrives alone waits this long for its interrupt. For latency, on a dedicated \
             machine: {}. This costs CPU time under load; busy polling is the alternative.",
            slow.join(", ")
        )),
    }
}

/// Judges the default of sockets; `None` if it is not visible.
fn busy_polling(busy_read_us: Option<u32>, has_no_card: bool) -> Check {
    const NAME: &str = "busy-polling";
    match busy_read_us {
        None => Check::info(AREA, NAME, "net.core.busy_read is not visible here"),
        Some(0) if has_no_card => Check::info(AREA, NAME, "off; no network card would need it"),
        Some(0) => Check::info(AREA, NAME, "off: a polling endpoint waits for the card's interrupts")
            .advise(format!(
                "On a dedicated machine: `sudo sysctl -w net.core.busy_read={BUSY_POLL_US}`. Endpoints that \
                 poll (IdlePolicy::Poll, Yield) then take packets from the card without its interrupt."
            )),
        Some(us) => Check::ok(AREA, NAME, format!("sockets poll the card for up to {us} us")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::Status;

    fn words(usecs: u32, frames: u32, adaptive: u32) -> [u32; 23] {
        let mut words = [0; 23];
        (words[0], words[1], words[2], words[10]) = (0x0e, usecs, frames, adaptive);
        words
    }

    fn device(held: Option<Coalescing>) -> Vec<(String, Option<Coalescing>)> {
        vec![("eth7".to_owned(), held)]
    }

    #[test]
    fn coalescing__a_card_that_holds_interrupts_back_gets_advice() {
        for (held, is_advised) in [
            (words(50, 0, 0), true),
            (words(0, 32, 1), true),
            (words(50, 1, 0), false),
            (words(5, 0, 0), false),
            (words(0, 0, 0), false),
        ] {
            let check = coalescing(&device(Some(Coalescing::of(held))));
            assert_eq!(check.status, Status::Info);
            assert_eq!(check.advice.is_some(), is_advised, "{check:?}");
            assert!(check.found.starts_with("eth7: "), "{check:?}");
            assert!(check.advice.is_none_or(|text| text.contains("ethtool -C eth7")));
        }
        assert!(coalescing(&device(None)).found.contains("does not say"));
        assert!(coalescing(&[]).found.contains("no network card"));
    }

    #[test]
    fn busy_polling__is_advised_where_a_card_is_and_it_is_off() {
        assert_eq!(busy_polling(Some(50), false).status, Status::Ok);
        assert!(busy_polling(Some(0), false).advice.unwrap().contains("busy_read=50"));
        assert_eq!(busy_polling(Some(0), true).advice, None);
        assert_eq!(busy_polling(None, false).advice, None);
    }

    #[test]
    fn interrupt_coalescing__of_no_device_is_an_error() {
        assert!(interrupt_coalescing("no-such-device").is_err());
        assert!(interrupt_coalescing(&"x".repeat(200)).is_err());
    }
}
