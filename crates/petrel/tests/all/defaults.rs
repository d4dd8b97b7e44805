//! The default settings, as documented in `docs/operating.md` and in the types' documentation.

use std::fs;
use std::path::Path;
use std::time::Duration;

use petrel::Nexus;
use petrel::client::ClientConfig;
use petrel::endpoint::{EndpointConfig, IdlePolicy};
use petrel::overload::{
    AdmissionConfig, BackoffConfig, ConcurrencyLimitConfig, RetryBudgetConfig, Shedding,
};

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

#[test]
fn endpoint_config__has_the_limits_that_operators_are_told() {
    let EndpointConfig { protocol, sessions, memory, host, .. } = EndpointConfig::default();
    let rto = protocol.rto;
    let rto_us = [rto.min_ns, rto.max_ns, rto.initial_ns, rto.probe_min_ns].map(|ns| ns / 1_000);
    let message_bytes = sessions.message_bytes_max;
    let limits = [
        ("time of a call without a deadline", "60 s", protocol.call_timeout_ns == 60_000_000_000),
        (
            "requests on the way per session, calls that wait included",
            "2 048",
            sessions.slots == 2_048,
        ),
        ("packets unacknowledged per session", "64", sessions.credits == 64),
        ("message", "8 MiB", message_bytes == 8 << 20),
        ("message memory per endpoint", "1 GiB", memory.max_bytes == 1 << 30),
        ("sessions per endpoint", "2²⁰", protocol.sessions_max == 1 << 20),
        ("calls waiting per session", "65 536", protocol.backlog_max == 65_536),
        (
            "retransmission timeout",
            "1 ms to 500 ms, 10 ms before",
            rto_us == [1_000, 500_000, 10_000, 100],
        ),
        ("unanswered retransmissions", "14", protocol.retries_max == 14),
    ];
    let manual = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operating.md");
    let manual = fs::read_to_string(manual).unwrap();
    for (limit, value, is_so) in limits {
        let row = manual.lines().find(|line| line.starts_with(&format!("| {limit} |")));
        let default = row.and_then(|row| row.split('|').nth(2)).unwrap_or_default();
        assert!(default.contains(value) && is_so, "{limit}: {value} here, and there:{default}");
    }
    assert!(protocol.fast_path && protocol.response_grants);
    assert!(sessions.accept && sessions.accept_multicast);
    assert!(host.udp.gso && host.udp.gro && host.udp.ecn);
}

#[test]
fn endpoint_config__looks_for_a_tenth_of_a_millisecond_and_uses_both_transports() {
    let config = EndpointConfig::default();
    assert_eq!(config.idle, IdlePolicy::SpinThenBlock(Duration::from_micros(100)));
    assert!(config.transports.udp && config.transports.shm);
    assert_eq!((config.id, config.data_address), (None, None));
    assert_eq!(config.client_calls_max, 4_096);
}

#[test]
fn channel_config__is_as_documented() {
    let config = ClientConfig::default();
    assert_eq!((config.timeout, config.attempts_max), (ms(10_000), 4));
    assert_eq!(config.attempt_timeout, None);
    let pauses = |first, max, growth_percent| BackoffConfig { first, max, growth_percent };
    assert_eq!(config.retry_backoff, pauses(ms(1), ms(200), 200));
    assert_eq!(config.connect_backoff, pauses(ms(1), ms(2_000), 125));
    let budget = RetryBudgetConfig { per_thousand: 100, reserve_per_s: 10, saved_max: 100 };
    assert_eq!(config.retry_budget, budget);
    let (initial, max) = (u32::MAX, u32::MAX);
    let limit = ConcurrencyLimitConfig { initial, max, pause_max: ms(20) };
    assert_eq!(config.concurrency, Some(limit));
    assert_eq!(BackoffConfig::default(), pauses(ms(1), ms(1_000), 200));
}

#[test]
fn admission_config__bounds_memory_and_waits_of_a_hundred_services() {
    let shedding = Shedding::ExpectedWait { target: ms(1), services: 100 };
    let config = AdmissionConfig { requests_max: 1_024, bytes_max: 64 << 20, shedding };
    assert_eq!(AdmissionConfig::default(), config);
}

#[test]
fn nexus_builder__speaks_each_second_and_waits_five_for_a_step() {
    let settings = format!("{:?}", Nexus::builder());
    for setting in ["listen: None", "insecure: false", "heartbeat: 1s", "connect_timeout: 5s"] {
        assert!(settings.contains(setting), "{setting} in {settings}");
    }
    assert!(settings.contains("udp: true, shm: true"), "{settings}");
}
