//! Values that several subcommands accept.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use petrel::endpoint::AllowedTransports;
use petrel::endpoint::IdlePolicy;
use petrel_proto::limits::MESSAGE_BYTES_MAX;

use crate::methods;
use crate::units::{exact_duration, parse_duration, parse_size};

/// The smallest limit of a server's messages, in bytes: its greeting and its error texts have fewer.
const SERVER_MESSAGE_MAX_MIN: u32 = 1 << 10;

/// The transport that a session may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TransportChoice {
    /// Shared memory if the two ends are on one host and belong to one user, else UDP, or a TCP stream where datagrams
    /// do not get through
    Auto,
    /// Kernel UDP
    Udp,
    /// Shared memory; an error if the two ends cannot share memory
    Shm,
    /// Frames over a TCP connection
    Stream,
    /// The RDMA card of --device verbs
    Verbs,
}

/// Transports that a benchmark can compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchTransport {
    /// Kernel UDP
    Udp,
    /// Shared memory
    Shm,
    /// Frames over TCP
    Stream,
}

/// How an endpoint waits for packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IdleChoice {
    /// Poll without end: the lowest latency, a whole CPU per endpoint
    Poll,
    /// Poll for a while and let other threads run in between, then sleep until a packet arrives
    Spin,
    /// Poll without end, but let other threads run first: for several endpoints on one CPU
    Yield,
    /// Sleep at once: the least CPU time, tens of microseconds more latency
    Block,
}

impl TransportChoice {
    /// Returns the transports for the library's configuration.
    pub fn allowed(self) -> AllowedTransports {
        match self {
            Self::Auto => AllowedTransports::ALL,
            Self::Udp => AllowedTransports::UDP,
            Self::Shm => AllowedTransports::SHM,
            Self::Stream => AllowedTransports::STREAM,
            Self::Verbs => AllowedTransports::VERBS,
        }
    }
}

impl BenchTransport {
    /// Returns this transport alone for the library's configuration.
    pub fn only(self) -> AllowedTransports {
        match self {
            Self::Udp => AllowedTransports::UDP,
            Self::Shm => AllowedTransports::SHM,
            Self::Stream => AllowedTransports::STREAM,
        }
    }

    /// Returns the value's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Shm => "shm",
            Self::Stream => "stream",
        }
    }
}

impl IdleChoice {
    /// Returns the library's idle policy.
    pub fn policy(self) -> IdlePolicy {
        match self {
            Self::Poll => IdlePolicy::Poll,
            Self::Spin => IdlePolicy::default(),
            Self::Yield => IdlePolicy::Yield,
            Self::Block => IdlePolicy::Block,
        }
    }

    /// Returns the value's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Poll => "poll",
            Self::Spin => "spin",
            Self::Yield => "yield",
            Self::Block => "block",
        }
    }
}

/// A method to call: a number, or its name in `petrel serve`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method(pub u16);

impl FromStr for Method {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            let number = text
                .parse()
                .map_err(|_| format!("'{text}' is not a method's number: they are 0 to 65535"))?;
            return Ok(Self(number));
        }
        let known = methods::NAMES.iter().find(|(name, _)| *name == text);
        known.map(|(_, number)| Self(*number)).ok_or_else(|| {
            let names = methods::NAMES.map(|(name, _)| name).join(", ");
            format!("'{text}' is no method of `petrel serve`: write a number, or one of {names}")
        })
    }
}

/// The source of a request's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// The argument itself.
    Text(String),
    /// A file, written `@PATH`.
    File(PathBuf),
    /// Standard input, written `-`.
    Stdin,
}

impl FromStr for Payload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix('@')) {
            ("-", _) => Ok(Self::Stdin),
            (_, Some("")) => Err("'@' needs the path of a file behind it".to_owned()),
            (_, Some(path)) => Ok(Self::File(path.into())),
            _ => Ok(Self::Text(text.to_owned())),
        }
    }
}

/// A share of packets, in parts per billion; up to a half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(u32);

impl Share {
    const WHOLE: f64 = 1e9;

    /// Returns the share in the unit of the nftables rule that drops packets.
    pub fn per_billion(self) -> u32 {
        self.0
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let share: f64 = text.parse().unwrap_or(f64::NAN);
        let parts = (share * Self::WHOLE).round();
        let is_known = (0.0..=0.5).contains(&share) && (share == 0.0 || parts >= 1.0);
        is_known.then_some(Self(parts as u32)).ok_or_else(|| {
            format!(
                "'{text}' is not a share of packets: write 0, or 1e-9 to 0.5, as in 1e-3 or 0.001"
            )
        })
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.0) / Self::WHOLE)
    }
}

/// Parses a seed in decimal, or in hexadecimal after `0x`, as failing runs print it.
pub fn parse_seed(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed
        .map_err(|_| format!("'{text}' is not a seed: write a number below 2^64, as in 17 or 0x1f"))
}

/// Parses a size that does not exceed the largest message.
pub fn parse_message_max(text: &str) -> Result<u32, String> {
    let bytes = parse_size(text)?;
    u32::try_from(bytes)
        .ok()
        .filter(|bytes| *bytes <= MESSAGE_BYTES_MAX)
        .ok_or_else(|| format!("'{text}' is too large: a message has at most 1GiB"))
}

/// Parses a size that a server can be limited to: a reply of `petrel serve` fits.
pub fn parse_server_message_max(text: &str) -> Result<u32, String> {
    parse_message_max(text).and_then(|bytes| match bytes {
        0..SERVER_MESSAGE_MAX_MIN => {
            Err(format!("'{text}' is too small: replies of the server itself have up to 1KiB"))
        }
        _ => Ok(bytes),
    })
}

/// Parses a duration that must not be shorter than `shortest`.
pub fn parse_at_least(text: &str, shortest: Duration) -> Result<Duration, String> {
    let duration = parse_duration(text)?;
    match duration < shortest {
        true => {
            Err(format!("'{text}' is too short: at least {} is needed", exact_duration(shortest)))
        }
        false => Ok(duration),
    }
}

/// How the leader verifies its leadership before a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReadsChoice {
    /// Asks a majority, once for all waiting reads: correct whatever clocks do
    ReadIndex,
    /// Relies on promises of the followers: faster, and correct while clock rates differ by at most 5 %
    Lease,
}

impl ReadsChoice {
    /// Returns the value's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadIndex => "read-index",
            Self::Lease => "lease",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn method__is_a_number_or_a_name_that_serve_knows() {
        assert_eq!("7".parse(), Ok(Method(7)));
        assert_eq!("65535".parse(), Ok(Method(65_535)));
        assert_eq!("sink".parse(), Ok(Method(methods::SINK)));
        assert!("65536".parse::<Method>().unwrap_err().contains("0 to 65535"));
        assert!("kv.get".parse::<Method>().unwrap_err().contains("echo, sink"));
        assert!("".parse::<Method>().is_err());
    }

    #[test]
    fn payload__follows_the_prefix() {
        assert_eq!("hello".parse(), Ok(Payload::Text("hello".into())));
        assert_eq!("".parse(), Ok(Payload::Text(String::new())));
        assert_eq!("@a/b".parse(), Ok(Payload::File("a/b".into())));
        assert_eq!("-".parse(), Ok(Payload::Stdin));
        assert!("@".parse::<Payload>().is_err());
    }

    #[test]
    fn share__is_none_or_a_billionth_to_a_half() {
        for (text, parts) in [("0", 0), ("1e-9", 1), ("1e-7", 100), ("0.01", 10_000_000)] {
            let share: Share = text.parse().unwrap();
            assert_eq!(share.per_billion(), parts);
            assert_eq!(share.to_string().parse(), Ok(share));
        }
        for wrong in ["", "x", "-0.1", "1e-10", "0.6", "1", "nan", "inf"] {
            assert!(wrong.parse::<Share>().unwrap_err().contains("1e-3"), "{wrong}");
        }
    }

    #[test]
    fn parse_server_message_max__has_a_least_value() {
        for wrong in ["0", "1", "1023"] {
            assert!(parse_server_message_max(wrong).unwrap_err().contains("too small"), "{wrong}");
        }
        assert_eq!(parse_server_message_max("1KiB"), Ok(1024));
        assert!(parse_server_message_max("2GiB").is_err());
    }

    #[test]
    fn parse_at_least__names_the_shortest() {
        let shortest = Duration::from_millis(30);
        assert_eq!(parse_at_least("30ms", shortest), Ok(shortest));
        for wrong in ["0s", "1ms", "29999us"] {
            assert!(parse_at_least(wrong, shortest).unwrap_err().contains("30ms"), "{wrong}");
        }
    }

    #[test]
    fn parse_seed__takes_both_bases() {
        assert_eq!(parse_seed("17"), Ok(17));
        assert_eq!(parse_seed("0xff"), Ok(255));
        assert_eq!(parse_seed("18446744073709551615"), Ok(u64::MAX));
        assert!(parse_seed("-1").is_err());
        assert!(parse_seed("0x").is_err());
    }
}
