//! The command as a user sees it: run as a process, judged by output and exit code.

use crate::common::{command, ended_after, finish, petrel, record, stderr, stdout};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

#[test]
fn doctor__json_lines_are_checks_with_their_fields() {
    let output = petrel(&["doctor", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    let checks: Vec<Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for check in &checks {
        for field in ["name", "area", "found"] {
            assert!(check[field].as_str().is_some_and(|text| !text.is_empty()), "{check}");
        }
        let status = check["status"].as_str().unwrap();
        assert!(["ok", "info", "warn", "fail"].contains(&status), "{check}");
        assert!(check["advice"].is_null() || check["advice"].is_string(), "{check}");
    }
    let names: Vec<_> = checks.iter().filter_map(|check| check["name"].as_str()).collect();
    for name in EXPECTED_CHECKS {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
}

const EXPECTED_CHECKS: [&str; 26] = [
    "kernel",
    "udp-loopback",
    "udp-gso",
    "udp-gro",
    "udp-ecn",
    "udp-paths",
    "ipv6-loopback",
    "loopback-mtu",
    "udp-receive-buffer",
    "udp-send-buffer",
    "interrupt-coalescing",
    "busy-polling",
    "tcp-loopback",
    "control-port-ipv4",
    "control-port-ipv6",
    "ephemeral-ports",
    "sealed-memory",
    "memory-hand-over",
    "huge-pages",
    "locked-memory",
    "cpu-count",
    "cpu-isolation",
    "cpu-quota",
    "clock-source",
    "open-files",
    "af-xdp",
];

#[test]
fn doctor__checks_that_every_host_passes_pass() {
    let output = petrel(&["doctor", "--json"]);
    let checks = stdout(&output).lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let status_of = |name: &str| {
        let found = checks.clone().find(|check| check["name"] == name);
        found.map(|check| check["status"].as_str().unwrap().to_owned())
    };
    assert_eq!(status_of("udp-loopback").as_deref(), Some("ok"));
    assert_eq!(status_of("tcp-loopback").as_deref(), Some("ok"));
}

#[test]
fn doctor__text_off_a_terminal_has_no_colours_and_ends_with_a_verdict() {
    let output = petrel(&["doctor"]);
    assert_eq!(output.status.code(), Some(0));
    let text = stdout(&output);
    assert!(!text.contains('\u{1b}'));
    assert!(text.contains("udp-gso") && text.contains("Petrel runs on this host"), "{text}");
    assert_eq!(stderr(&output), "");
}

#[test]
fn doctor__a_port_in_use_is_reported_not_fatal() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let output = petrel(&["doctor", "--json", "--port", &port]);
    assert_eq!(output.status.code(), Some(0));
    let line = stdout(&output).lines().find(|line| line.contains("control-port-ipv4")).unwrap();
    let check: Value = serde_json::from_str(line).unwrap();
    assert_eq!(check["status"], "warn");
    assert!(check["found"].as_str().unwrap().contains("in use"), "{check}");
}

#[test]
fn doctor__a_closed_pipe_is_no_failure() {
    let mut child = command(&["doctor"]).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(stderr(&output), "");
}

const SUBCOMMANDS: [&str; 9] =
    ["demo", "serve", "ping", "call", "stats", "kv", "bench", "sim", "doctor"];

#[test]
fn sim__runs_fresh_seeds_and_names_them() {
    let output = petrel(&["sim", "--seeds", "8", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    let summary = record(&output);
    assert_eq!((&summary["seeds"], &summary["failures"]), (&8.into(), &Value::Array(vec![])));
    assert!(summary["totals"]["calls"].as_u64().unwrap() > 0, "{summary}");
}

#[test]
fn sim__a_seed_runs_alike_with_and_without_trace() {
    let alone = petrel(&["sim", "--seed", "7", "--json"]);
    let traced = petrel(&["sim", "--seed", "7", "--trace", "--json"]);
    assert_eq!(record(&alone), record(&traced));
    assert_eq!(record(&alone)["seeds"], 1);
    assert!(stderr(&traced).lines().count() > 100, "a line for each event");
}

#[test]
fn help__of_the_command_lists_the_subcommands_and_the_exit_codes() {
    let output = petrel(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    let text = stdout(&output);
    assert!(text.contains("Exit codes"), "{text}");
    for subcommand in SUBCOMMANDS {
        assert!(text.contains(&format!("\n  {subcommand} ")), "{subcommand} is not in: {text}");
    }
}

#[test]
fn version__is_that_of_the_crate() {
    let output = petrel(&["--version"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(stdout(&output), concat!("petrel ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn usage__errors_exit_with_2_and_print_no_result() {
    for arguments in [&[][..], &["doctor", "--port", "http"]] {
        let output = petrel(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(stdout(&output), "", "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn completions_and_man__know_the_subcommands() {
    let output = petrel(&["completions", "bash"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(stdout(&output).contains("health"), "{output:?}");
    let directory = std::env::temp_dir().join(format!("petrel-man-{}", std::process::id()));
    let output = petrel(&["man", directory.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    for (page, says) in
        [("petrel.1", "doctor"), ("petrel-ping.1", "echo"), ("petrel-kv-put.1", "key")]
    {
        let text = std::fs::read_to_string(directory.join(page)).unwrap();
        assert!(text.starts_with(".ie") && text.contains(says), "{page}: {text}");
    }
    std::fs::remove_dir_all(directory).unwrap();
    let output = petrel(&["completions", "tcsh"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn help__that_cannot_be_written_is_a_failure() {
    for arguments in [&["--help"][..], &["ping", "--help"], &["--version"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let child = command(arguments).stdout(full).spawn().unwrap();
        assert_eq!(finish(child).status.code(), Some(1), "{arguments:?}");
    }
}

#[test]
fn man__names_the_directory_that_it_cannot_write_and_the_values_in_a_synopsis() {
    let output = petrel(&["man", "/proc/x"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/proc/x"), "{output:?}");
    let directory = std::env::temp_dir().join(format!("petrel-man-values-{}", std::process::id()));
    assert_eq!(petrel(&["man", directory.to_str().unwrap()]).status.code(), Some(0));
    let page = std::fs::read_to_string(directory.join("petrel-ping.1")).unwrap();
    assert!(page.contains(".SH SYNOPSIS\npetrel ping [OPTIONS] <ADDR>"), "{page}");
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn sim__interrupted_sums_up_the_seeds_so_far() {
    let output = ended_after(1, &["sim", "--seeds", "1000000000"], Signal::INT);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = stdout(&output);
    assert!(text.contains("ended before the other") && text.contains("kept all rules"), "{text}");
}

#[test]
fn bench__interrupted_shows_the_figures_so_far() {
    // The first record is of the first measurement; the second would take ten minutes.
    let long = ["--duration", "10min", "--window", "5ms", "--cores", "1", "--json"];
    let mut child = command(&[&["bench", "latency", "--transport", "shm"], &long[..]].concat());
    let child = child.spawn().unwrap();
    let id = Pid::from_child(&child);
    // The signal is blocked before the thread that notes it starts.
    let has_thread = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id()));
        tasks.is_ok_and(|mut tasks| {
            tasks.any(|task| {
                let name = task.and_then(|task| std::fs::read_to_string(task.path().join("comm")));
                name.is_ok_and(|name| name.trim() == "signals")
            })
        })
    };
    assert!(crate::common::wait_until(has_thread));
    kill_process(id, Signal::INT).unwrap();
    let output = finish(child);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let figure = record(&output);
    assert!(figure["windows"].as_u64().unwrap() > 0 && figure["value_ns"].is_u64(), "{figure}");
}
