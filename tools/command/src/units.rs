//! Sizes and durations as users write them, and numbers as users read them.
//!
//! User input carries its unit: `64KiB`, `1.5ms`. A bare number is a size in bytes and never a duration,
//! because no unit of time is obvious. The arithmetic is exact: a size with a fraction of a byte is an
//! error, not a rounding.

use std::time::Duration;

/// Units of a size, in bytes. Letter case does not matter.
const SIZE_UNITS: [(&str, u64); 8] = [
    ("", 1),
    ("b", 1),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
];

/// Units of a duration, in nanoseconds. The two signs for micro are distinct code points.
const DURATION_UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
];

/// Most digits accepted in a number: enough for any `u64`, and times the largest unit no overflow of a
/// `u128`.
const DIGITS_MAX: usize = 20;

/// Parses a size such as `32`, `64KiB` or `1.5MB` into bytes.
pub fn parse_size(text: &str) -> Result<usize, String> {
    let number = Number::parse(text).map_err(|reason| size_error(text, &reason))?;
    let unit = number.unit.to_ascii_lowercase();
    let scale = SIZE_UNITS.iter().find(|(name, _)| *name == unit).map(|(_, scale)| *scale);
    let Some(scale) = scale else {
        return Err(size_error(text, &format!("'{}' is not a unit of size", number.unit)));
    };
    let bytes = number.times(scale).map_err(|reason| size_error(text, &reason.message("bytes")))?;
    usize::try_from(bytes).map_err(|_| size_error(text, "it is too large for this machine"))
}

/// Parses a duration such as `10us`, `1.5ms` or `3s`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let number = Number::parse(text).map_err(|reason| duration_error(text, &reason))?;
    if number.unit.is_empty() {
        return Err(duration_error(text, "it needs a unit"));
    }
    let scale = DURATION_UNITS.iter().find(|(name, _)| *name == number.unit).map(|(_, ns)| *ns);
    let Some(scale) = scale else {
        return Err(duration_error(text, &format!("'{}' is not a unit of time", number.unit)));
    };
    let ns = number.times(scale).map_err(|reason| duration_error(text, &reason.message("ns")))?;
    Ok(Duration::from_nanos(ns))
}

fn size_error(text: &str, reason: &str) -> String {
    format!("'{text}' is not a size: {reason}; write bytes or a unit, as in 32, 64KiB or 8MiB")
}

fn duration_error(text: &str, reason: &str) -> String {
    format!(
        "'{text}' is not a duration: {reason}; write a number and ns, us, ms, s or min, \
         as in 10us or 3s"
    )
}

/// A decimal number followed by its unit: `digits / 10^decimals`.
struct Number<'a> {
    digits: u128,
    decimals: u32,
    unit: &'a str,
}

impl<'a> Number<'a> {
    fn parse(text: &'a str) -> Result<Self, String> {
        let text = text.trim();
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() || number.ends_with('.') || fraction.contains('.') {
            return Err("it does not start with a number".to_owned());
        }
        if whole.len() + fraction.len() > DIGITS_MAX {
            return Err("the number has too many digits".to_owned());
        }
        let digits = format!("{whole}{fraction}").parse().map_err(|_| "it is no number")?;
        Ok(Self { digits, decimals: fraction.len() as u32, unit: unit.trim_start() })
    }

    fn times(&self, scale: u64) -> Result<u64, Inexact> {
        let scaled = self.digits * u128::from(scale);
        let divisor = 10u128.pow(self.decimals);
        if !scaled.is_multiple_of(divisor) {
            return Err(Inexact::Fraction);
        }
        u64::try_from(scaled / divisor).map_err(|_| Inexact::TooLarge)
    }
}

/// The reason why a number of units is not a whole number of the base unit.
enum Inexact {
    Fraction,
    TooLarge,
}

impl Inexact {
    fn message(&self, base: &str) -> String {
        match self {
            Self::Fraction => format!("it is not a whole number of {base}"),
            Self::TooLarge => "it is too large".to_owned(),
        }
    }
}

/// Formats a time for human readers: `850 ns`, `4.4 us`, `12.0 ms`, `3.00 s`.
pub fn format_ns(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => scaled(ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => scaled(ns as f64 / 1e6, "ms"),
        _ => scaled(ns as f64 / 1e9, "s"),
    }
}

/// Formats a duration as [`parse_duration`] reads it, without loss.
pub fn exact_duration(duration: Duration) -> String {
    let ns = duration.as_nanos();
    let scales = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)];
    match scales.into_iter().find(|(_, scale)| ns.is_multiple_of(*scale)) {
        Some((unit, scale)) => format!("{}{unit}", ns / scale),
        None => format!("{ns}ns"),
    }
}

/// Formats a number of bytes for human readers, in powers of 1024: `32 B`, `64.0 KiB`, `8.00 MiB`.
pub fn format_bytes(bytes: u64) -> String {
    const KIB: f64 = 1024.0;
    let value = bytes as f64;
    match bytes {
        0..0x400 => format!("{bytes} B"),
        0x400..0x10_0000 => scaled(value / KIB, "KiB"),
        0x10_0000..0x4000_0000 => scaled(value / KIB.powi(2), "MiB"),
        _ => scaled(value / KIB.powi(3), "GiB"),
    }
}

/// Formats a rate for human readers, in powers of 1000: `950 calls/s`, `1.23 Mcalls/s`.
pub fn format_rate(per_second: f64, unit: &str) -> String {
    let (value, prefix) = match per_second {
        v if v < 1e3 => return format!("{v:.0} {unit}/s"),
        v if v < 1e6 => (v / 1e3, "k"),
        v if v < 1e9 => (v / 1e6, "M"),
        v => (v / 1e9, "G"),
    };
    scaled(value, &format!("{prefix}{unit}/s"))
}

/// Formats three significant digits, or all digits of a longer whole part.
fn scaled(value: f64, unit: &str) -> String {
    let decimals = match value {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_size__accepts_bytes_and_both_families_of_units() {
        assert_eq!(parse_size("0"), Ok(0));
        assert_eq!(parse_size("32"), Ok(32));
        assert_eq!(parse_size("32B"), Ok(32));
        assert_eq!(parse_size("64KiB"), Ok(65_536));
        assert_eq!(parse_size("64kib"), Ok(65_536));
        assert_eq!(parse_size("8 MiB"), Ok(8 << 20));
        assert_eq!(parse_size("1.5KiB"), Ok(1_536));
        assert_eq!(parse_size("1GiB"), Ok(1 << 30));
        assert_eq!(parse_size("2kB"), Ok(2_000));
        assert_eq!(parse_size("1.472kB"), Ok(1_472));
    }

    #[test]
    fn parse_size__names_the_fault_and_shows_how() {
        for (text, reason) in [
            ("", "start with a number"),
            ("KiB", "start with a number"),
            ("-1", "start with a number"),
            ("1.", "start with a number"),
            (".5KiB", "start with a number"),
            ("1.2.3", "start with a number"),
            ("64K", "'K' is not a unit of size"),
            ("10us", "'us' is not a unit of size"),
            ("0.3KiB", "not a whole number of bytes"),
            ("99999999999GiB", "too large"),
            ("123456789012345678901", "too many digits"),
        ] {
            let error = parse_size(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
            assert!(error.contains("64KiB"), "{text}: {error}");
        }
    }

    #[test]
    fn parse_duration__accepts_each_unit() {
        assert_eq!(parse_duration("250ns"), Ok(Duration::from_nanos(250)));
        assert_eq!(parse_duration("10us"), Ok(Duration::from_micros(10)));
        assert_eq!(parse_duration("10\u{b5}s"), Ok(Duration::from_micros(10)));
        assert_eq!(parse_duration("10\u{3bc}s"), Ok(Duration::from_micros(10)));
        assert_eq!(parse_duration("1.5ms"), Ok(Duration::from_micros(1_500)));
        assert_eq!(parse_duration("3s"), Ok(Duration::from_secs(3)));
        assert_eq!(parse_duration("2 min"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("0s"), Ok(Duration::ZERO));
    }

    #[test]
    fn parse_duration__names_the_fault_and_shows_how() {
        for (text, reason) in [
            ("", "start with a number"),
            ("10", "needs a unit"),
            ("10m", "'m' is not a unit of time"),
            ("10MS", "'MS' is not a unit of time"),
            ("0.5ns", "not a whole number of ns"),
            ("99999999999999s", "too large"),
        ] {
            let error = parse_duration(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
            assert!(error.contains("10us"), "{text}: {error}");
        }
    }

    #[test]
    fn exact_duration__is_read_back() {
        for (ns, text) in [(0, "0s"), (3_000_000_000, "3s"), (1_500_000_000, "1500ms"), (1, "1ns")]
        {
            let duration = Duration::from_nanos(ns);
            assert_eq!(exact_duration(duration), text);
            assert_eq!(parse_duration(text), Ok(duration));
        }
    }

    #[test]
    fn format_ns__keeps_three_digits() {
        assert_eq!(format_ns(0), "0 ns");
        assert_eq!(format_ns(999), "999 ns");
        assert_eq!(format_ns(4_400), "4.40 us");
        assert_eq!(format_ns(44_060), "44.1 us");
        assert_eq!(format_ns(9_999), "10.0 us");
        assert_eq!(format_ns(12_000_000), "12.0 ms");
        assert_eq!(format_ns(3_000_000_000), "3.00 s");
        assert_eq!(format_ns(3_600_000_000_000), "3600 s");
    }

    #[test]
    fn format_bytes__uses_powers_of_1024() {
        assert_eq!(format_bytes(32), "32 B");
        assert_eq!(format_bytes(1_536), "1.50 KiB");
        assert_eq!(format_bytes(64 << 10), "64.0 KiB");
        assert_eq!(format_bytes(8 << 20), "8.00 MiB");
        assert_eq!(format_bytes(3 << 30), "3.00 GiB");
    }

    #[test]
    fn format_rate__uses_powers_of_1000() {
        assert_eq!(format_rate(950.0, "calls"), "950 calls/s");
        assert_eq!(format_rate(1_234_000.0, "calls"), "1.23 Mcalls/s");
        assert_eq!(format_rate(93.4e9, "bit"), "93.4 Gbit/s");
    }
}
