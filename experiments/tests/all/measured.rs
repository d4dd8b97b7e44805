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
fn card__fits_predicts_and_draws() {
    let plot = std::env::temp_dir().join(format!("petrel-card-{}.svg", std::process::id()));
    let output = run(&["card", "--scheme", "herd,pilaf", "--plot", plot.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let again = "Again:\n  petrel-experiment card --scheme herd,pilaf --figure 9 --contexts 64";
    assert!(stdout(&output).contains(again), "{output:?}");
    let svg = std::fs::read_to_string(&plot).unwrap();
    std::fs::remove_file(&plot).unwrap();
    assert!(svg.contains("Pilaf"), "{svg}");

    let fitted = records(&run(&["card", "--fit", "--json"]));
    let residuals: Vec<f64> = fitted.iter().filter_map(|row| row["residual"].as_f64()).collect();
    assert!(residuals.len() == 12 && residuals.iter().all(|it| it.abs() < 0.01), "{residuals:?}");

    let predicted = records(&run(&["card", "--predict", "--json"]));
    let error = |what: &str| {
        predicted.iter().find(|row| row["what"] == what).unwrap()["error"].as_f64().unwrap()
    };
    assert!(error("FaRM, GETs").abs() < 0.15, "the link was not fitted to this rate");
    assert!(error("HERD's latency, saturated") < -0.15, "a row says where the model is wrong");
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

#[test]
fn pause__compares_first_calls_with_bare_wake_ups() {
    let arguments = ["pause", "--json", "--pause", "0s,1ms", "--rounds", "5"];
    let output = run(&[&arguments[..], &["--idle", "block,30us"]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let rows = records(&output);
    let (wakes, calls): (Vec<_>, Vec<_>) =
        rows.iter().partition(|row| row.get("wake_up_by").is_some());
    assert_eq!(wakes.len(), 2 * 4, "two pauses, four mechanisms");
    for row in wakes {
        assert!(row["wake_up_ns"].as_f64().unwrap() > 0.0, "{row}");
    }
    let cases: Vec<_> = calls
        .iter()
        .map(|row| (row["pause_ns"].as_u64().unwrap(), row["idle"].as_str().unwrap()))
        .collect();
    let of_a_transport = [(0, "block"), (0, "30us"), (1_000_000, "block"), (1_000_000, "30us")];
    assert_eq!(cases, [of_a_transport, of_a_transport].concat());
    for row in &calls {
        assert_eq!((&row["checked"], &row["mismatched"]), (&5.into(), &0.into()), "{row}");
        for field in ["call_ns", "wake_up_ns", "wake_ups", "cpu_ns"] {
            assert!(row[field].as_f64().unwrap() > 0.0, "{row}");
        }
    }
}

#[test]
fn pause__refuses_an_unknown_idle_policy() {
    for policy in ["sleep", "20", "-1us"] {
        let idle = format!("--idle={policy}");
        let output = run(&["pause", &idle]);
        assert_eq!(output.status.code(), Some(2), "{policy}: {output:?}");
    }
}

#[test]
fn overload__counts_every_call_between_two_processes() {
    let arguments = "overload-measured --json --policy none,default --load 50,300 --duration 100ms \
                     --workers 2 --service 500us --sessions 4 --slo 20ms --transport";
    for transport in ["udp", "shm"] {
        let arguments: Vec<_> = arguments.split(' ').chain([transport]).collect();
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let figures: Vec<Value> = records(&output);
        assert_eq!(figures.len(), 2 * 2 * 2, "policies, back-pressure, loads");
        for figure in &figures {
            let of = |name: &str| figure[name].as_u64().unwrap();
            let ends = ["good", "late", "refused", "expired", "held_back", "unsent", "wrong"];
            assert_eq!(of("offered"), ends.iter().map(|name| of(name)).sum::<u64>(), "{figure}");
            assert!(of("wrong") == 0 && of("wasted") <= of("executed"), "{figure}");
            // On a busy machine, a policy may refuse all calls of a window this short.
            let is_idle = of("executed") == 0;
            assert!(is_idle || of("service_ns") >= 500_000, "workers sleep: {figure}");
            let answered = of("good") + of("late");
            assert_eq!(figure["latency"]["count"].as_u64().unwrap_or(0), answered, "{figure}");
        }
        let executed = figures.iter().filter_map(|figure| figure["executed"].as_u64());
        assert!(executed.sum::<u64>() > 0, "{figures:?}");
    }
}

#[test]
fn overload__of_nothing_is_a_failure() {
    for wrong in [["--service", "0us"], ["--duration", "0s"], ["--slo", "100us"]] {
        let output = run(&[&["overload-measured", "--json"], &wrong[..]].concat());
        assert_eq!(output.status.code(), Some(1), "{output:?}");
    }
}

#[test]
fn index__checks_every_answer() {
    let output = run(&[
        "index",
        "--json",
        "--keys",
        "2000",
        "--rounds",
        "1",
        "--window",
        "30ms",
        "--clients",
        "3",
        "--scans",
        "10",
    ]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let reports = records(&output);
    assert_eq!(reports.len(), 2);
    for (report, transport) in reports.iter().zip(["udp", "shm"]) {
        assert_eq!((&report["transport"], &report["wrong"]), (&transport.into(), &json!(0)));
        let rows = report["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 8);
        assert!(rows.iter().all(|row| row["checked"].as_u64().unwrap() > 0), "{report}");
        let scans: Vec<_> = rows.iter().filter(|row| row["scan_latency"].is_object()).collect();
        assert_eq!(scans.len(), 2, "{report}");
    }
}

#[test]
fn sealed__compares_the_library_with_the_cipher_alone() {
    let output = run(&["sealed", "--json", "--part", "cipher"]);
    let rows = records(&output);
    assert_eq!(rows.len(), 2 * 3, "sealed and opened, three sizes: {output:?}");
    for row in &rows {
        assert!(row["plain"].as_f64() > Some(0.0) && row["sealed"].as_f64() > Some(0.0), "{row}");
        assert!(row["reached"].is_boolean(), "{row}");
    }
}

#[test]
fn sealed__without_the_command_is_a_failure() {
    let output = run(&["sealed", "--json", "--part", "store", "--petrel", "/no-such-program"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}
