//! `petrel kv chaos` as a user sees it: a short run, an interrupted run, and a run without the required
//! programs.

use std::io::Read;
use std::path::Path;

use crate::common::{command, petrel, record, stderr, stdout};
use petrel_skip::{Need, skip};
use serde_json::Value;

/// Returns the missing requirement, if the run was skipped.
fn skipped(line: &str) -> Option<String> {
    let record: Value = serde_json::from_str(line).unwrap();
    record["skipped"].as_str().map(str::to_owned)
}

fn report_skipped(reason: &str) {
    skip(if reason.contains("namespaces") { Need::Namespaces } else { Need::Go }, reason);
}

fn arguments<'a>(directory: &'a Path, phase_time: &'a str) -> Vec<&'a str> {
    let directory = directory.to_str().unwrap();
    let run = ["kv", "chaos", "--seed", "7", "--json", "--duration", "1s"];
    [&run[..], &["--phase-time", phase_time, "--directory", directory]].concat()
}

fn directory(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("petrel-{name}-{}", std::process::id()))
}

#[test]
fn chaos__a_short_run_keeps_all_rules_and_leaves_nothing() {
    let directory = directory("chaos-short");
    let output = petrel(&arguments(&directory, "6s"));
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    let text = stdout(&output);
    let lines: Vec<&str> = text.lines().collect();
    if let Some(reason) = skipped(lines[0]) {
        return report_skipped(&reason);
    }
    let [phase, summary] = lines[..] else { panic!("{text}") };
    let (phase, summary): (Value, Value) =
        (serde_json::from_str(phase).unwrap(), serde_json::from_str(summary).unwrap());
    assert_eq!((&phase["violations"], &summary["violations"]), (&Value::Array(vec![]), &0.into()));
    assert!(phase["done"].as_u64().unwrap() > 0 && phase["linearizable"].as_u64().unwrap() > 0);
    assert!(!phase["faults"].as_object().unwrap().is_empty(), "{phase}");
    assert!(!directory.exists());
}

#[test]
fn chaos__what_was_started_ends_with_the_command() {
    let directory = directory("chaos-interrupted");
    let mut child = command(&arguments(&directory, "600s")).spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    // The run is in the midst of a phase, or was skipped.
    let log = directory.join("phase-0/node-3.log");
    while !log.exists() && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // The pipe stays open while any process of the run lives.
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    if let Some(reason) = rest.lines().next().and_then(skipped) {
        return report_skipped(&reason);
    }
    assert_eq!(rest, "");
    assert!(!directory.exists());
}

#[test]
fn chaos__without_the_programs_it_needs_is_skipped() {
    let mut command = command(&["kv", "chaos", "--json"]);
    let output = command.env("PATH", "/nowhere").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(record(&output)["skipped"].as_str().unwrap().contains("go"), "{}", stdout(&output));
}
