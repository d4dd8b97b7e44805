//! Client and server as two processes: `serve`, `ping`, `call` and `stats`.

use crate::common::{
    Server, command, ended_after, finish, free_address, has_ipv6, petrel, record, records, stderr,
    stdout,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn assert_ping(server: &Server, transport: &str, size: u64) -> Value {
    let size_text = size.to_string();
    let mut line = vec!["ping", &server.address, "--json", "--transport", transport];
    line.extend(["--size", &size_text, "--count", "20", "--in-flight", "3", "--timeout", "60s"]);
    if size < 3 {
        // The endpoint's own echo takes no fewer bytes.
        line.extend(["--method", "echo"]);
    }
    let output = petrel(&line);
    assert_eq!(output.status.code(), Some(0), "{size} B: {output:?}");
    let ping = record(&output);
    assert_eq!((&ping["answered"], &ping["mismatched"]), (&20.into(), &0.into()), "{ping}");
    assert_eq!((&ping["failed"], &ping["transport"]), (&0.into(), &transport.into()), "{ping}");
    assert_eq!(ping["latency"]["count"], 20);
    ping
}

/// Pings with sizes that are sent in different ways: empty, one byte, a few bytes, the largest message
/// of one packet and the smallest of two, many packets, and the limit. Returns the size of a packet.
fn assert_pings(server: &Server, transport: &str) -> u64 {
    let packet = assert_ping(server, transport, 0)["packet_bytes"].as_u64().unwrap();
    for size in [1, 32, packet, packet + 1, 1 << 20, 8 << 20] {
        assert_ping(server, transport, size);
    }
    packet
}

#[test]
fn ping__of_all_sizes_over_udp() {
    assert_pings(&Server::on_free_port(), "udp");
}

#[test]
fn ping__of_all_sizes_over_shared_memory() {
    assert_pings(&Server::on_free_port(), "shm");
}

#[test]
fn ping__of_all_sizes_over_ipv6() {
    if !has_ipv6() {
        return;
    }
    let server = Server::start(&["--listen", "[::1]:0"]);
    assert!(server.address.starts_with("[::1]:"), "{}", server.address);
    assert_pings(&server, "udp");
    assert_ping(&server, "shm", 32);
}

#[test]
fn ping__with_the_smallest_mtu() {
    let server = Server::start(&["--listen", "127.0.0.1:0", "--mtu", "1280"]);
    // The MTU minus the headers of IPv4, UDP and a packet, in whole words.
    assert_eq!(assert_pings(&server, "udp"), (1280 - 20 - 8 - 32) / 8 * 8);
}

#[test]
fn ping__finds_shared_memory_by_itself_unless_the_server_does_not_offer_it() {
    let server = Server::on_free_port();
    assert_eq!(record(&petrel(&["ping", &server.address, "--json"]))["transport"], "shm");
    let server = Server::start(&["--listen", "127.0.0.1:0", "--transport", "udp"]);
    assert_eq!(record(&petrel(&["ping", &server.address, "--json"]))["transport"], "udp");
    let output = petrel(&["ping", &server.address, "--transport", "shm", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(record(&output)["status"], "FAILED_PRECONDITION", "{output:?}");
}

#[test]
fn ping__with_more_in_flight_than_a_session_has_slots() {
    let server = Server::on_free_port();
    let output = petrel(&[
        "ping",
        &server.address,
        "--count",
        "5000",
        "--in-flight",
        "200",
        "--timeout",
        "60s",
        "--json",
    ]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(record(&output)["answered"], 5_000);
}

#[test]
fn ping__for_people_is_a_few_lines() {
    let server = Server::on_free_port();
    let output = petrel(&["ping", &server.address]);
    assert_eq!(output.status.code(), Some(0));
    let text = stdout(&output);
    for part in ["10 calls made, 10 answered", "every byte", "p99.9", "packets sent again"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    assert_eq!(stderr(&output), "");
}

#[test]
fn ping__beyond_the_limit_is_refused_before_anything_is_sent() {
    let server = Server::on_free_port();
    let output = petrel(&["ping", &server.address, "--size", "8388609", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let failure = &record(&output)["failures"][0];
    assert_eq!(
        (&failure["status"], &failure["may_have_executed"]),
        (&"RESOURCE_EXHAUSTED".into(), &"no".into())
    );
}

#[test]
fn ping__to_an_endpoint_that_does_not_exist_is_refused() {
    let server = Server::start(&["--listen", "127.0.0.1:0", "--endpoints", "2"]);
    let ping = |endpoint| petrel(&["ping", &server.address, "--endpoint", endpoint, "--json"]);
    assert_eq!(ping("1").status.code(), Some(0));
    let output = ping("2");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(record(&output)["status"], "UNAVAILABLE", "{output:?}");
}

#[test]
fn ping__ends_with_its_figures_when_interrupted() {
    let server = Server::on_free_port();
    let child = command(&["ping", &server.address, "--count", "1000000000", "--json"]).spawn();
    let child = child.unwrap();
    server.wait_for_requests(1);
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::INT).unwrap();
    let output = finish(child);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let ping = record(&output);
    assert_eq!((&ping["interrupted"], &ping["failed"]), (&true.into(), &0.into()));
    assert_eq!(ping["calls"], ping["answered"]);
}

#[test]
fn call__prints_the_reply_and_nothing_else() {
    let server = Server::on_free_port();
    let output = petrel(&["call", &server.address, "--method", "hello", "--data", "petrel"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!((stdout(&output), stderr(&output)), ("Hello, petrel!", ""));
}

#[test]
fn call__json_has_text_or_hexadecimal_digits() {
    let server = Server::on_free_port();
    let call = |method, data| {
        record(&petrel(&["call", &server.address, "--method", method, "--data", data, "--json"]))
    };
    let echo = call("echo", "hi");
    assert_eq!((&echo["text"], &echo["length_bytes"]), (&"hi".into(), &2.into()));
    let sink = call("2", "hi");
    assert!(sink["hex"].as_str().unwrap().starts_with("0200000000000000"), "{sink}");
    assert_eq!(sink["length_bytes"], 16);
}

#[test]
fn call__sends_files_and_standard_input() {
    let server = Server::on_free_port();
    let path = concat!("@", env!("CARGO_MANIFEST_DIR"), "/tests/all/calls.rs");
    let output = petrel(&["call", &server.address, "--data", path]);
    assert_eq!(stdout(&output), include_str!("calls.rs"));
    let output = petrel(&["call", &server.address, "--data", "-"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), ""));
    let output = petrel(&["call", &server.address, "--data", "@/no/such/file"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/no/such/file"));
}

#[test]
fn call__that_fails_says_how() {
    let server = Server::on_free_port();
    let call = |method, data| {
        petrel(&["call", &server.address, "--method", method, "--data", data, "--json"])
    };
    for (method, data, status, executed, words) in [
        ("999", "", "UNIMPLEMENTED", "no", "no such method"),
        ("fail", "\u{5}no such shelf", "NOT_FOUND", "answered", "no such shelf"),
        ("source", "short", "INVALID_ARGUMENT", "answered", "12 bytes"),
    ] {
        let output = call(method, data);
        assert_eq!(output.status.code(), Some(1));
        let end = record(&output);
        assert_eq!((&end["status"], &end["may_have_executed"]), (&status.into(), &executed.into()));
        assert!(end["message"].as_str().unwrap().contains(words), "{end}");
        assert!(stderr(&output).contains(status) && stderr(&output).contains(words));
    }
}

#[test]
fn stats__report_the_servers_work() {
    let server = Server::on_free_port();
    let output = petrel(&["ping", &server.address, "--count", "17", "--warm-up", "0"]);
    assert_eq!(output.status.code(), Some(0));
    let stats = record(&petrel(&["stats", &server.address, "--json"]));
    let endpoint = &stats["endpoints"][0]["stats"];
    assert_eq!(
        (&endpoint["requests_received"], &endpoint["sessions_opened"]),
        (&17.into(), &1.into())
    );
    assert!(stats["nexus"].is_object());
    let output = petrel(&["stats", &server.address]);
    let text = stdout(&output);
    assert!(text.contains("endpoint 0") && text.contains("requests_received"), "{text}");
}

#[test]
fn serve__ends_cleanly_on_both_signals() {
    for signal in [Signal::TERM, Signal::INT] {
        let server = Server::on_free_port();
        let ping = petrel(&["ping", &server.address, "--warm-up", "4"]);
        assert_eq!(ping.status.code(), Some(0));
        server.signal(signal);
        let (code, rest) = server.finish();
        assert_eq!(code, Some(0), "{rest}");
        let stopped: Value = serde_json::from_str(&rest).unwrap();
        assert_eq!(stopped["event"], "stopped");
        assert_eq!(stopped["endpoints"][0]["requests_received"], 4 + 10, "{stopped}");
    }
}

/// Three large calls are in flight at any time: the server answers them, and the client makes no others.
#[test]
fn serve__that_is_asked_to_end_answers_what_it_has_got() {
    for transport in ["udp", "shm"] {
        let server = Server::on_free_port();
        let large =
            ["--size", "8MiB", "--in-flight", "3", "--count", "1000000000", "--warm-up", "0"];
        let how = ["ping", &server.address, "--json", "--timeout", "60s", "--transport", transport];
        let client = command(&[&how[..], &large].concat()).spawn().unwrap();
        server.wait_for_requests(5);
        server.signal(Signal::TERM);
        let (code, rest) = server.finish();
        assert_eq!(code, Some(0), "{rest}");
        let stopped: Value = serde_json::from_str(&rest).unwrap();
        assert_eq!(stopped["sessions_cut"], 0, "{stopped}");
        let ping = record(&finish(client));
        assert_eq!(ping["answered"], stopped["endpoints"][0]["requests_received"], "{ping}");
        let failures = ping["failures"].as_array().unwrap();
        assert!(failures.iter().all(|failure| failure["may_have_executed"] == "no"), "{ping}");
    }
}

#[test]
fn serve__does_not_wait_for_ever_for_a_client_that_hangs() {
    let server = Server::start(&["--listen", "127.0.0.1:0", "--drain", "1ms"]);
    let count = ["ping", &server.address, "--count", "1000000000"];
    let client = command(&count).spawn().unwrap();
    server.wait_for_requests(1);
    let client_id = Pid::from_child(&client);
    kill_process(client_id, Signal::STOP).unwrap();
    server.signal(Signal::TERM);
    let (code, rest) = server.finish();
    kill_process(client_id, Signal::CONT).unwrap();
    finish(client);
    assert_eq!(code, Some(0), "{rest}");
    let stopped: Value = serde_json::from_str(&rest).unwrap();
    assert_eq!(stopped["sessions_cut"], 1, "{stopped}");
}

#[test]
fn serve__refuses_other_hosts_and_addresses_in_use() {
    let output = petrel(&["serve", "--listen", "0.0.0.0:0", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("refused to listen"), "{}", stderr(&output));
    let server = Server::on_free_port();
    let output = petrel(&["serve", "--listen", &server.address, "--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(record(&output)["error"].as_str().unwrap().contains(&server.address), "{output:?}");
}

#[test]
fn demo__verifies_both_transports() {
    let output = petrel(&["demo", "--no-bench", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let records = records(&output);
    assert_eq!(records[0]["reply"], "Hello, petrel!");
    let transfers: Vec<_> = records[1..]
        .iter()
        .map(|record| (record["transport"].as_str().unwrap(), record["verified"] == true))
        .collect();
    assert_eq!(transfers, [("udp", true), ("udp", true), ("shm", true), ("shm", true)]);
}

#[test]
fn health__of_a_server_at_an_ipv6_address_over_udp() {
    if !has_ipv6() {
        return;
    }
    let server = Server::start(&["--listen", "[::1]:0", "--transport", "udp"]);
    let output = petrel(&["health", &server.address]);
    assert_eq!((output.status.code(), stdout(&output).trim_end()), (Some(0), "serving"));
}

#[test]
fn health__is_an_exit_code() {
    let server = Server::on_free_port();
    for (method, code, word, name) in [
        (None, 0, "serving", "SERVING"),
        (Some("echo"), 0, "serving", "SERVING"),
        (Some("77"), 1, "unknown: the server has no such method", "SERVICE_UNKNOWN"),
    ] {
        let mut line = vec!["health", server.address.as_str()];
        line.extend(method.into_iter().flat_map(|method| ["--method", method]));
        let output = petrel(&line);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert_eq!(stdout(&output).trim_end(), word);
        line.push("--json");
        assert_eq!(record(&petrel(&line))["health"], name);
    }
}

#[test]
fn ping__calls_a_method_of_the_server_if_it_is_named() {
    let server = Server::on_free_port();
    let ping = |method| petrel(&["ping", &server.address, "--method", method, "--json"]);
    assert_eq!(record(&ping("echo"))["answered"], 10);
    let wrong = ping("sink");
    assert_eq!(wrong.status.code(), Some(1));
    assert!(record(&wrong)["mismatched"].as_u64() > Some(0), "a checksum is no echo: {wrong:?}");
}

#[test]
fn call__of_health_prints_a_word() {
    let server = Server::on_free_port();
    let output = petrel(&["call", &server.address, "--method", "health"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), "serving\n"));
}

#[test]
fn failures__of_a_port_without_a_server_have_one_wording() {
    let address = free_address();
    let bench: &[&str] = &["bench", "rate", "--transport", "udp", "--connect"];
    let lines: [&[&str]; 5] = [&["ping"], &["call"], &["stats"], &["health"], bench];
    for line in lines {
        let output = petrel(&[line, &[&address, "--json"]].concat());
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(record(&output)["status"], "UNAVAILABLE", "{output:?}");
        let begin = format!("petrel: cannot connect to {address}: no process listens at {address}");
        assert!(stderr(&output).starts_with(&begin), "{line:?}: {}", stderr(&output));
        assert!(!stderr(&output).contains("not sent"), "{line:?}: {}", stderr(&output));
    }
}

#[test]
fn stats__are_watched_at_the_interval_behind_the_flag() {
    let server = Server::on_free_port();
    let arguments = ["stats", &server.address, "--json", "--watch", "10ms"];
    let output = ended_after(3, &arguments, Signal::TERM);
    assert!(records(&output).len() >= 3 && stderr(&output).is_empty(), "{output:?}");
}
