//! The experiments that measure this machine: short runs, judged by their fields and never by their figures. And those with a
//! model of their own.

use crate::common::{records, run, stderr, stdout};
use serde_json::{Value, json};

/// Runs an experiment for the shortest duration of three windows.
fn short(arguments: &[&str]) -> std::process::Output {
    let windows = ["--json", "--duration", "30ms", "--window", "5ms"];
    run(&[arguments, &windows].concat())
}

/// Checks the properties of every figure that compares two sides.
fn assert_figure(figure: &Value) {
    for field in ["value", "bare", "ratio"] {
        assert!(figure[field].as_f64().is_some_and(|value| value > 0.0), "{field}: {figure}");
    }
    assert_eq!((&figure["mismatched"], &figure["bare_mismatched"]), (&json!(0), &json!(0)));
    assert!(figure["checked"].as_u64() > Some(0), "{figure}");
    assert_eq!(figure["checked"], figure["calls"], "{figure}");
    let command = figure["command"].as_str().unwrap();
    assert!(command.starts_with("petrel"), "{figure}");
}

#[test]
fn sweep__has_a_figure_for_each_point_and_a_plot() {
    for (what, field, points) in [("batch", "batch", 7), ("size", "size_bytes", 3)] {
        let name = format!("petrel-sweep-{what}-{}.svg", std::process::id());
        let plot = std::env::temp_dir().join(name);
        let limits = ["--size-max", "128KiB", "--cores", "1", "--transport", "shm"];
        let arguments = [&["sweep", what, "--plot", plot.to_str().unwrap()], &limits[..]].concat();
        let output = short(&arguments);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let figures = records(&output);
        figures.iter().for_each(assert_figure);
        let values: Vec<_> = figures.iter().map(|figure| figure[field].as_u64()).collect();
        assert_eq!(values.len(), points);
        assert!(values.is_sorted_by(|a, b| a < b), "{values:?}");
        let svg = std::fs::read_to_string(&plot).unwrap();
        std::fs::remove_file(&plot).unwrap();
        assert!(svg.contains("Petrel over shm") && svg.contains("bare shm"), "{svg}");
    }
}

#[test]
fn factors__each_beside_everything_switched_on() {
    let output = short(&["factors", "--transport", "udp,shm"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let figures = records(&output);
    for figure in &figures {
        assert_figure(figure);
        assert_eq!(figure["baseline"], "everything-on");
        assert!(figure["factor"].is_string() && figure["instead"].is_string(), "{figure}");
    }
    for (transport, unit) in
        [("udp", "Mcalls/s"), ("udp", "Gbit/s"), ("shm", "Mcalls/s"), ("shm", "Gbit/s")]
    {
        let is_one = |figure: &&Value| figure["transport"] == transport && figure["unit"] == unit;
        assert!(figures.iter().filter(is_one).count() >= 3, "{transport}, {unit}");
    }
}

#[test]
fn congestion__each_control_beside_none() {
    let output = short(&["congestion", "--busy", "1"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let figures = records(&output);
    assert_eq!(figures.len(), 12);
    for (index, figure) in figures.iter().enumerate() {
        assert_figure(figure);
        assert_eq!(figure["baseline"], "no-control");
        assert_eq!(figure["congestion"], ["dcqcn", "timely", "swift"][index % 3]);
        assert_eq!(figure["busy"], 1);
    }
}

/// Small tables: the test measures nothing.
const SMALL_TABLES: [&str; 7] = ["batch", "--smaller", "256", "--rounds", "2", "--window", "2ms"];

#[test]
fn batch__every_table_over_both_transports() {
    let plot = std::env::temp_dir().join(format!("petrel-batch-{}.svg", std::process::id()));
    let output = run(&[&SMALL_TABLES[..], &["--json", "--plot", plot.to_str().unwrap()]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let rows = records(&output);
    let names: Vec<_> = rows.iter().map(|row| row["table"].as_str().unwrap()).collect();
    assert_eq!(names, ["ipv4", "ipv4", "ipv6", "ipv6", "switch", "switch", "ndn", "ndn"]);
    for row in &rows {
        let forms = row["forms"].as_array().unwrap();
        let names: Vec<_> = forms.iter().map(|form| form["form"].as_str().unwrap()).collect();
        assert_eq!(names, ["echo", "echo-batched", "plain", "prefetched", "batched"]);
        for form in forms {
            let product = form["server_ns"].as_f64().unwrap()
                * form["rate_per_server_core"].as_f64().unwrap();
            assert!((product - 1e3).abs() < 1.0, "{row}");
        }
        assert!(row["checked"].as_u64().unwrap() > 0 && row["mismatched"] == 0, "{row}");
        let [ratio, required] =
            ["batched_over_plain", "required"].map(|name| row[name].as_f64().unwrap());
        assert_eq!(row["reached"], ratio >= required, "{row}");
        let spread = &row["batched_over_plain_spread"];
        assert!(spread["min"].as_f64() <= Some(ratio) && Some(ratio) <= spread["max"].as_f64());
    }
    let svg = std::fs::read_to_string(&plot).unwrap();
    std::fs::remove_file(&plot).unwrap();
    assert!(svg.contains("ndn over shm: ") && svg.trim_end().ends_with("</svg>"), "{svg}");
}

#[test]
fn batch__for_people_is_a_table_and_the_way_to_repeat_it() {
    let output = run(&[&SMALL_TABLES[..], &["--table", "ipv4", "--transport", "shm"]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = stdout(&output);
    let again = "Again:\n  petrel-experiment batch --table ipv4 --transport shm --smaller 256";
    for part in ["batched over it", " of the plain server's time; ", " 0 wrong", again] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

#[test]
fn lookups__compares_ways_of_looking_items_up() {
    let output = run(&[
        "lookups",
        "--json",
        "--accesses",
        "0,2",
        "--items",
        "5000",
        "--memory",
        "8MiB",
        "--partitions",
        "2",
        "--in-flight",
        "16",
        "--rounds",
        "1",
        "--window",
        "5ms",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let rows = records(&output);
    // For each transport an echo, three ways with two numbers of accesses and two distributions, and the accesses alone.
    assert_eq!(rows.len(), 2 * (1 + 3 * 2 * 2 + 1));
    for row in &rows {
        assert!(
            row["checked"].as_u64() > Some(0) && row["rate_per_s"].as_f64() > Some(0.0),
            "{row}"
        );
        assert_eq!((&row["wrong"], &row["lost"]), (&json!(0), &json!(0)), "{row}");
        let form = row["form"].as_str().unwrap();
        let is_compared = form != "bare" && row["accesses"] == 2;
        assert_eq!(row["of_plain"].is_f64(), !["echo", "plain", "bare"].contains(&form), "{row}");
        assert_eq!(row["of_no_access"].is_f64(), is_compared, "{row}");
        assert_eq!(row["of_no_access_bound"].is_f64(), is_compared, "{row}");
        assert_eq!(row["of_uniform"].is_f64(), row["keys"] == "zipf", "{row}");
    }
}

#[test]
fn card__has_the_ratio_of_the_paper_and_a_plot() {
    let plot = std::env::temp_dir().join(format!("petrel-card-{}.svg", std::process::id()));
    let output = run(&["card", "--scheme", "herd,pilaf", "--plot", plot.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = stdout(&output);
    let again = "Again:\n  petrel-experiment card --scheme herd,pilaf --figure 9";
    for part in ["HERD over Pilaf, 95 % GETs: 2.5", again] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    let svg = std::fs::read_to_string(&plot).unwrap();
    std::fs::remove_file(&plot).unwrap();
    assert!(svg.contains("Pilaf"), "{svg}");
}

#[test]
fn puts__take_a_round_trip_more_than_an_echo() {
    let output = run(&["puts", "--puts", "200"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = stdout(&output);
    for part in ["put, at the client", "Charged beyond", "petrel-experiment puts --puts 200"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}
