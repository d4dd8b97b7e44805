//! `petrel-experiment`, as a process.

use crate::common::{records, run, stdout};
use serde_json::Value;

fn experiment(arguments: &[&str]) -> std::process::Output {
    let output = run(&[arguments].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    output
}

#[test]
fn experiment__each_has_a_row_for_each_figure_in_json() {
    for (what, rows, field) in [
        ("loss", 6, "goodput_gbit"),
        ("small-loss", 4, "rate_mrps"),
        ("incast", 4, "jain"),
        ("scale", 2, "rate_per_host_mrps"),
        ("cc-cost", 8, "relative"),
    ] {
        let arguments = [what, "--quick", "--seed", "3", "--json"];
        let output = experiment(&arguments);
        if what == "small-loss" {
            // The simulator's tests check that figures repeat; here the command must add no
            // variation.
            assert_eq!(output.stdout, experiment(&arguments).stdout);
        }
        let rows_found: Vec<Value> = records(&output);
        assert_eq!(rows_found.len(), rows, "{what}");
        for row in rows_found {
            assert!(row[field].as_f64().is_some_and(|value| value > 0.0), "{what}: {row}");
            assert!(row["controller"].is_string(), "{what}: {row}");
        }
    }
}

#[test]
fn experiment__paths_have_rows_and_the_way_to_repeat_them() {
    for (what, policy, rows, field) in [
        ("loss", "single", 2, "goodput_gbit"),
        ("cut", "coupled", 14, "capacity_gbit"),
        ("small", "plb", 2, "limit_ns"),
        ("flows", "single", 2, "slowdown_mean"),
    ] {
        let mut arguments = vec!["paths", what, "--quick", "--json", "--recovery", "selective"];
        arguments.extend(["--policy", policy, "--ports", "8"]);
        if what == "flows" {
            arguments.extend(["--load", "80"]);
        }
        let rows_found: Vec<Value> = records(&experiment(&arguments));
        assert!(rows_found.len() >= rows, "{what}: {rows_found:?}");
        for row in rows_found {
            assert!(row[field].as_f64().is_some_and(|value| value > 0.0), "{what}: {row}");
            assert_eq!((&row["policy"], &row["recovery"]), (&policy.into(), &"selective".into()));
            assert_eq!(row["ports"], if policy == "single" { 1 } else { 8 }, "{row}");
        }
    }
    let plot = std::env::temp_dir().join(format!("petrel-paths-{}.svg", std::process::id()));
    let arguments = ["paths", "incast", "--quick", "--policy", "single", "--plot"];
    let output = experiment(&[&arguments[..], &[plot.to_str().unwrap()]].concat());
    let text = stdout(&output);
    let again = "  petrel-experiment paths incast --seed 1 --quick --policy single";
    assert!(text.contains(again) && text.contains("4 to 1"), "{text}");
    let svg = std::fs::read_to_string(&plot).unwrap();
    std::fs::remove_file(&plot).unwrap();
    assert!(svg.contains("single, go-back-n"), "{svg}");
}

#[test]
fn experiment__overload_is_as_large_as_asked_for() {
    let arguments = "overload --quick --json --load 50,200 --policy none,default --target 20us \
                     --service fixed,bimodal --mean 5us --slo 90us --clients 4 --workers 1";
    let rows: Vec<Value> = records(&experiment(&arguments.split(' ').collect::<Vec<_>>()));
    assert_eq!(rows.len(), 2 * 2 * 2 * 2, "services, policies, back-pressure, loads");
    for row in rows {
        let per_s = row["offered_per_s"].as_f64().unwrap();
        let expected = row["load"].as_f64().unwrap() * 200_000.0;
        assert!((per_s / expected - 1.0).abs() < 0.1, "one worker, 5 us each: {row}");
        assert!(row["policy"].is_string() && row["latency"]["p99_ns"].is_u64(), "{row}");
    }
}

#[test]
fn experiment__for_people_is_a_table_a_plot_and_the_way_to_repeat_it() {
    let plot = std::env::temp_dir().join(format!("petrel-experiment-{}.svg", std::process::id()));
    let output = experiment(&[
        "incast",
        "--quick",
        "--senders",
        "4,8",
        "--congestion",
        "none,swift",
        "--plot",
        plot.to_str().unwrap(),
    ]);
    let text = stdout(&output);
    let again = "  petrel-experiment incast --seed 1 --quick --senders 4,8 --congestion none,swift";
    for part in ["senders", "Jain", again, "Plot: "] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    let svg = std::fs::read_to_string(&plot).unwrap();
    std::fs::remove_file(&plot).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("swift, p99"), "{svg}");
}

#[test]
fn experiment__wrong_parameters_are_usage_errors() {
    for (arguments, word) in [
        (&["incast", "--congestion", "reno"][..], "timely-no-bypass"),
        (&["incast", "--senders", "105"], "104"),
        (&["scale", "--threads", "0"], "1..=16"),
        (&["loss", "--gbit", "0"], "1..=400"),
        (&["loss", "--seed", "x"], "seed"),
        (&["loss", "--rto-min", "5"], "needs a unit"),
        (&["loss", "--veth", "--rto-min", "5ms"], "--veth"),
        (&["overload", "--policy", "hope"], "expected"),
        (&["overload", "--service", "uniform"], "bimodal"),
        (&["overload", "--load", "0"], "1..=1000"),
        (&["paths", "loss", "--policy", "all"], "single"),
        (&["paths", "loss", "--ports", "1"], "2..=32"),
        (&["paths", "loss", "--window", "1s"], "--veth"),
        (&["paths", "cut", "--veth", "--seed", "3"], "--seed"),
        (&["paths", "cut", "--recovery", "none"], "go-back-n"),
        (&["paths", "flows", "--sizes", "mail"], "web-search"),
        (&["lookups", "--how", "fast"], "fast"),
        (&["card", "--figure", "8"], "14"),
        (&["puts", "--puts", "0"], "1..=1000000"),
        (&["nothing"], "nothing"),
    ] {
        let output = run(&[arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(crate::common::stderr(&output).contains(word), "{output:?}");
    }
}

#[test]
fn experiment__the_least_timeout_has_bounds() {
    for (least, word) in [("0s", "nanosecond"), ("1s", "largest")] {
        let output = run(&["loss", "--quick", "--json", "--rto-min", least]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let error = records(&output).pop().unwrap()["error"].to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn experiment__overload_of_nothing_is_a_failure() {
    for arguments in [["--mean", "0us"], ["--mean", "1000s"], ["--slo", "10000s"]] {
        let output = run(&[&["overload", "--json"], &arguments[..]].concat());
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let error = records(&output).pop().unwrap()["error"].to_string();
        assert!(error.contains(&arguments[0][2..]), "{error}");
    }
}

#[test]
fn experiment__plot_that_cannot_be_written_is_refused_before_the_run() {
    let plot = ["small-loss", "--quick", "--json", "--plot", "/no-such-folder/plot.svg"];
    let output = run(&plot);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("/no-such-folder/plot.svg") && output.stdout.is_empty(), "{said}");
}
