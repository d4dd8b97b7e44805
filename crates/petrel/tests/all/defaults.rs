//! The default settings, as documented in `docs/operating.md`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use petrel::client::ClientConfig;
use petrel::endpoint::EndpointConfig;

#[test]
fn endpoint_config__has_the_limits_that_operators_are_told() {
    let EndpointConfig { protocol, sessions, memory, host, client_calls_max, .. } =
        EndpointConfig::default();
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
        (
            "time of a client's call without a deadline, with all attempts",
            "10 s",
            ClientConfig::default().timeout == Duration::from_secs(10),
        ),
        ("outstanding calls of all clients of a thread", "4 096", client_calls_max == 4_096),
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
