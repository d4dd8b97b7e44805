//! Processes under limits of the kernel, and in namespaces of their own: a fall back with a reason, never a signal.

use std::process::{Command, Output, Stdio};

use petrel_skip::Need;

use crate::common::{Server, finish, record, stderr};

/// Runs `petrel ping` at its defaults, behind these words.
fn ping_behind(words: &[&str], server: &Server) -> Output {
    let (program, first) = words.split_first().unwrap();
    let child = Command::new(program)
        .args(first)
        .args([env!("CARGO_BIN_EXE_petrel"), "ping", &server.address, "--json"])
        .args(["--log", "info"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    finish(child.unwrap())
}

/// Runs `petrel ping` under a limit of the shell.
fn ping_under(limit: &str, server: &Server) -> Output {
    ping_behind(&["sh", "-c", &format!("ulimit {limit} && exec \"$@\""), "sh"], server)
}

fn assert_all_answered(output: &Output, transport: &str) {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let ping = record(output);
    assert_eq!((&ping["answered"], &ping["failed"]), (&10.into(), &0.into()), "{ping}");
    assert_eq!(ping["transport"], transport, "{output:?}");
}

#[test]
fn ping__under_a_limit_of_file_sizes_falls_back_to_udp_with_the_reason() {
    let server = Server::on_free_port();
    let output = ping_under("-f 64", &server);
    assert_all_answered(&output, "udp");
    let events = stderr(&output);
    assert!(events.contains("limit of file sizes") && events.contains("ulimit -f"), "{events}");
}

#[test]
fn ping__with_few_descriptors_is_answered_or_says_why_not() {
    let server = Server::on_free_port();
    for descriptors in [8, 10, 12, 14] {
        let output = ping_under(&format!("-n {descriptors}"), &server);
        // No signal: there is an exit code, and a failure has a text.
        match output.status.code() {
            Some(0) => assert_eq!(record(&output)["answered"], 10, "{output:?}"),
            Some(1) => assert!(stderr(&output).contains("petrel: "), "{output:?}"),
            _ => panic!("{descriptors}: {output:?}"),
        }
    }
}

/// Two containers of one pod share the network and the user, and not the numbers of processes.
#[test]
fn ping__from_another_pid_namespace_uses_shared_memory() {
    let server = Server::on_free_port();
    let words = ["unshare", "--pid", "--fork", "--mount-proc"];
    let trial = Command::new("unshare").args([&words[1..], &["true"]].concat()).output();
    if !trial.is_ok_and(|trial| trial.status.success()) {
        petrel_skip::skip(Need::Namespaces, "no namespace of processes can be made here");
        return;
    }
    assert_all_answered(&ping_behind(&words, &server), "shm");
}
