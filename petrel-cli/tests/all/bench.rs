//! `petrel bench`: short runs of every measurement, judged by their fields and never by their figures.

use crate::common::{Server, petrel, record, records, stdout};
use crate::dpdk::has_shim;
use petrel::Endpoint;
use petrel::server::RunningServer;
use petrel_skip::{Need, skip};
use serde_json::Value;

/// The shortest duration of three windows.
const SHORT: [&str; 4] = ["--duration", "30ms", "--window", "5ms"];

fn bench(arguments: &[&str]) -> std::process::Output {
    petrel(&[&["bench", "--json"], arguments, &SHORT].concat())
}

/// Checks the properties of every figure that compares two sides.
fn assert_figure(figure: &Value) {
    for field in ["value", "bare", "ratio"] {
        assert!(figure[field].as_f64().is_some_and(|value| value > 0.0), "{field}: {figure}");
    }
    for field in ["windows", "checked", "calls", "bare_checked", "batch", "in_flight", "sessions"] {
        assert!(figure[field].as_u64().is_some_and(|count| count > 0), "{field}: {figure}");
    }
    for field in ["dropped_windows", "retransmissions", "drops"] {
        assert!(figure[field].is_u64(), "{field}: {figure}");
    }
    assert_eq!((&figure["mismatched"], &figure["bare_mismatched"]), (&0.into(), &0.into()));
    assert_eq!(figure["checked"], figure["calls"], "{figure}");
    let spread = &figure["ratio_spread"];
    assert!(spread["min"].as_f64() <= spread["max"].as_f64(), "{figure}");
    assert!(figure["command"].as_str().unwrap().starts_with("petrel bench "), "{figure}");
}

/// Runs with client and server on a single core: other load cannot decide the duration of the run.
fn assert_bench(what: &str, unit: &str) -> Vec<Value> {
    let output = bench(&[what, "--cores", "1"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let figures = records(&output);
    let transports: Vec<_> = figures.iter().map(|figure| figure["transport"].as_str()).collect();
    assert_eq!(transports, [Some("udp"), Some("shm")]);
    for figure in &figures {
        assert_figure(figure);
        assert_eq!((&figure["bench"], &figure["unit"]), (&what.into(), &unit.into()));
        assert_eq!((&figure["cores"], &figure["distance"]), (&1.into(), &Value::Null));
        assert_eq!(figure["baseline"], "bare-medium");
    }
    figures
}

#[test]
fn latency__has_percentiles_of_both_sides() {
    for figure in assert_bench("latency", "us") {
        for side in ["latency", "bare_latency"] {
            let of = |name: &str| figure[side][name].as_u64().unwrap();
            assert!(of("p50_ns") <= of("p99_ns") && of("p99_ns") <= of("p999_ns"), "{figure}");
        }
        assert!(figure["difference_ns"].is_i64(), "{figure}");
        for time in ["value_ns", "bare_ns"] {
            assert!(figure[time].is_u64(), "{time} is in whole nanoseconds: {figure}");
        }
    }
}

#[test]
fn rate__on_one_core_says_how_long_a_call_takes() {
    for figure in assert_bench("rate", "Mcalls/s") {
        let product = figure["value"].as_f64().unwrap() * figure["ns_per_call"].as_f64().unwrap();
        assert!((product - 1e3).abs() < 1.0, "{figure}");
        assert_eq!((&figure["in_flight"], &figure["batch"]), (&60.into(), &3.into()));
    }
}

#[test]
fn bandwidth__counts_bits_of_requests() {
    for figure in assert_bench("bandwidth", "Gbit/s") {
        assert_eq!(figure["size_bytes"], 8 << 20);
    }
}

#[test]
fn rate__on_two_cores_probes_their_distance() {
    let figures = records(&bench(&["rate"]));
    assert_eq!(figures.len(), 2);
    for figure in figures {
        assert_figure(&figure);
        if figure["cores"] == 2 {
            let distance = figure["distance"].as_str().unwrap();
            assert!(["near", "far", "both", "unknown"].contains(&distance), "{figure}");
            assert_eq!(figure["cpus"].as_array().unwrap().len(), 2);
        }
    }
}

#[test]
fn rate__of_any_shape() {
    for (in_flight, batch, size) in [("1", "1", "0"), ("7", "3", "5"), ("100", "64", "2KiB")] {
        let shape = ["rate", "--in-flight", in_flight, "--batch", batch, "--size", size];
        let output = bench(&[&shape[..], &["--cores", "1"]].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        records(&output).iter().for_each(assert_figure);
    }
}

#[test]
fn command__repeats_the_measurement() {
    let first = record(&bench(&["rate", "--transport", "shm", "--cores", "1", "--batch", "4"]));
    let command = first["command"].as_str().unwrap();
    let arguments: Vec<&str> = command.split_ascii_whitespace().skip(1).chain(["--json"]).collect();
    let second = record(&petrel(&arguments));
    assert_figure(&second);
    for field in ["bench", "transport", "cores", "size_bytes", "in_flight", "batch", "command"] {
        assert_eq!(first[field], second[field]);
    }
}

#[test]
fn rate__for_people_is_a_table_and_the_way_to_repeat_it() {
    let output = petrel(&[&["bench", "rate", "--cores", "1"], &SHORT[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = stdout(&output);
    for part in ["ratio", "beside", "Again:\n  petrel bench rate --transport udp", "Beside it:"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

#[test]
fn rate__against_another_process_has_nothing_beside_it() {
    let server = Server::on_free_port();
    let output = bench(&["rate", "--transport", "udp", "--connect", &server.address]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let figure = record(&output);
    for field in ["cores", "bare", "ratio", "baseline"] {
        assert!(figure[field].is_null(), "{figure}");
    }
    assert!(figure["command"].as_str().unwrap().ends_with(&server.address), "{figure}");
    assert!(figure["checked"].as_u64().unwrap() > 0);
}

/// Starts a server in this process, whose methods the test chooses. Returns its address, too.
fn bad_server(register: fn(&mut Endpoint)) -> (RunningServer, String) {
    let server = petrel::Server::bind("127.0.0.1:0").serve(|_| (), register).start().unwrap();
    let address = server.local_addr().to_string();
    (server, address)
}

/// Registers wrong answers for two methods of `petrel serve`: echo and sample.
fn answer_wrongly(endpoint: &mut Endpoint) {
    endpoint.on(1, |_, cx, request| {
        let mut reply = request.data().to_vec();
        reply[0] ^= 1;
        request.reply(cx, &reply)
    });
    endpoint.on(6, |_, cx, request| request.reply(cx, &[0; 16]));
}

fn answer_with_failure(endpoint: &mut Endpoint) {
    endpoint.on(1, |_, cx, request| request.fail(cx, petrel::Status::Aborted, "not today"));
}

#[test]
fn bench__fails_when_replies_are_wrong() {
    let (_server, address) = bad_server(answer_wrongly);
    for what in ["latency", "rate", "bandwidth"] {
        for transport in ["udp", "shm"] {
            let output = bench(&[what, "--connect", &address, "--transport", transport]);
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            let figure = record(&output);
            assert!(figure["mismatched"].as_u64().unwrap() > 0, "{figure}");
        }
    }
}

#[test]
fn bench__fails_when_calls_fail() {
    let (_server, address) = bad_server(answer_with_failure);
    let output = bench(&["rate", "--connect", &address, "--transport", "udp"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let figure = record(&output);
    assert_eq!(figure["failures"][0]["status"], "ABORTED", "{figure}");
    assert_eq!(figure["failures"][0]["message"], "not today", "{figure}");
}

#[test]
fn sessions__in_steps_and_their_memory() {
    let output = bench(&["sessions", "--sessions", "150", "--cores", "1", "--transport", "shm"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let figures = records(&output);
    let steps: Vec<_> = figures.iter().map(|figure| figure["sessions"].as_u64()).collect();
    assert_eq!(steps, [1, 1, 100, 100, 150, 150, 150, 150].map(Some));
    for (figure, is_announced) in figures[..6].iter().zip([false, true].into_iter().cycle()) {
        assert_eq!(figure["announced"], is_announced, "{figure}");
        assert_figure(figure);
        assert_eq!(
            (&figure["bench"], &figure["baseline"]),
            (&"sessions".into(), &"one-session".into())
        );
    }
    for (figure, side) in figures[6..].iter().zip(["client", "server"]) {
        assert_eq!((&figure["bench"], &figure["side"]), (&"memory".into(), &side.into()));
        assert_eq!((&figure["unit"], &figure["checked"]), (&"KiB".into(), &150.into()));
        assert!(figure["unused"].as_f64() <= figure["value"].as_f64(), "{figure}");
    }
}

/// Returns the rows of `bench instructions`, which has no windows, for UDP and shared memory.
fn instructions(path: Option<&str>) -> Vec<Value> {
    let mut command = crate::common::command(&["bench", "instructions", "--json"]);
    if let Some(path) = path {
        command.env("PATH", path);
    }
    let output = crate::common::finish(command.spawn().unwrap());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let rows = records(&output);
    let shapes = rows.iter().map(|row| (row["transport"].as_str(), row["size_bytes"].as_u64()));
    let expected = [("udp", 32), ("udp", 8 << 20), ("shm", 32), ("shm", 8 << 20)];
    assert_eq!(shapes.collect::<Vec<_>>(), expected.map(|(over, size)| (Some(over), Some(size))));
    for row in &rows {
        assert_eq!(row["bench"], "instructions");
        let command = row["command"].as_str().unwrap();
        assert!(command.starts_with("petrel bench instructions --transport "), "{row}");
    }
    rows
}

#[test]
fn instructions__of_both_sides_where_they_can_be_counted() {
    for row in instructions(None).iter().filter(|row| !is_skipped(row)) {
        let of = |name: &str| row[name].as_f64().unwrap();
        assert!(of("client") > 0.0 && of("server") > 0.0, "{row}");
        assert!((of("client") + of("server") - of("value")).abs() < 1e-6, "{row}");
        assert_eq!((&row["unit"], &row["cores"]), (&"instructions".into(), &1.into()));
        let (in_flight, batch, per) =
            if row["size_bytes"] == 32 { (60, 3, "rpc") } else { (1, 1, "packet") };
        assert_eq!((&row["in_flight"], &row["batch"]), (&in_flight.into(), &batch.into()));
        assert_eq!(row["per"], per);
        assert!(row["bare"].is_null() && row["ratio"].is_null(), "{row}");
    }
}

#[test]
fn instructions__without_valgrind_are_skipped() {
    for row in instructions(Some("/no-such-folder")) {
        assert_eq!(row["skipped"], "valgrind is not installed", "{row}");
    }
}

#[test]
fn counted_workload__says_how_many_packets_its_requests_took() {
    // 8 MiB are many packets on either transport.
    for (workload, calls, packets_min) in
        [("shm-60", "600", 1), ("udp-60", "600", 1), ("shm-8MiB", "2", 256), ("udp-8MiB", "2", 256)]
    {
        let output = petrel(&["bench", "counted-workload", workload, calls]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let said = stdout(&output);
        let packets = said.lines().find_map(|line| line.strip_prefix("packets ")).unwrap();
        assert!(packets.parse::<u64>().unwrap() >= packets_min, "{output:?}");
    }
}

/// Returns true if the record reports a skipped measurement, which is no failure.
fn is_skipped(record: &Value) -> bool {
    let skipped = record["skipped"].as_str();
    // On any host, an unoptimised build's instructions are meaningless; the library's instruction
    // benchmark counts an optimised build.
    let says_nothing = skipped == Some("this build is not optimised; a release build is");
    if let Some(reason) = skipped.filter(|_| !says_nothing) {
        let is_networked = record["network"] == "veth";
        skip(if is_networked { Need::Namespaces } else { Need::Valgrind }, reason);
    }
    skipped.is_some()
}

#[test]
fn rate__between_network_namespaces_leaves_nothing_behind() {
    let output = bench(&["rate", "--veth"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let figure = record(&output);
    assert_eq!((&figure["transport"], &figure["network"]), (&"udp".into(), &"veth".into()));
    assert!(figure["command"].as_str().unwrap().ends_with("--veth"), "{figure}");
    if !is_skipped(&figure) {
        assert_figure(&figure);
        assert_eq!(figure["baseline"], "single-datagrams");
    }
    assert!(!std::path::Path::new("/sys/class/net/petrel0").exists());
}

#[test]
fn latency_and_bandwidth__past_the_kernel_have_a_bare_device_beside() {
    for what in ["latency", "bandwidth"] {
        let output = bench(&[what, "--veth", "--device", "xdp:petrel0"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let figure = record(&output);
        if !is_skipped(&figure) {
            assert_figure(&figure);
            assert_eq!(
                (&figure["network"], &figure["baseline"]),
                (&"veth".into(), &"bare-medium".into())
            );
        }
    }
}

#[test]
fn latency_rate_and_bandwidth__by_dpdk_have_a_bare_port_beside() {
    if !has_shim() {
        return;
    }
    for what in ["latency", "rate", "bandwidth"] {
        let output = bench(&[what, "--memif"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let figure = record(&output);
        assert_figure(&figure);
        assert_eq!(
            (&figure["network"], &figure["baseline"]),
            (&"memif".into(), &"bare-medium".into())
        );
        assert!(figure["command"].as_str().unwrap().ends_with(" --memif"), "{figure}");
    }
}

#[test]
fn all__has_every_row_and_its_target() {
    let output = bench(&["all", "--sessions", "100"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let figures = records(&output);
    assert_eq!(figures.len(), 20);
    let is_counted = |figure: &&Value| figure["bench"] == "instructions";
    assert_eq!(figures.iter().filter(is_counted).count(), 4);
    // Instructions of small calls over UDP serve only for comparison.
    let is_judged = |figure: &&Value| {
        !(is_counted(figure) && figure["transport"] == "udp" && figure["size_bytes"] == 32)
    };
    for figure in figures.iter().filter(|figure| !is_skipped(figure)).filter(is_judged) {
        assert!(figure["target"].as_str().is_some_and(|target| !target.is_empty()), "{figure}");
        let share = figure["share"].as_f64().unwrap();
        assert_eq!(figure["reached"], if share >= 1.0 { "yes" } else { "no" }, "{figure}");
    }
}

#[test]
fn kv__measures_the_stores_client_beside_raw_calls() {
    let keys = ["kv", "--transport", "shm", "--clients", "1,3", "--keys", "200"];
    let output = bench(&keys);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let rows = records(&output);
    let of = |clients: u64| {
        let matches_row = |row: &&Value| row["clients"] == clients;
        rows.iter().filter(matches_row).map(|row| row["what"].as_str().unwrap()).collect::<Vec<_>>()
    };
    let one = ["stale get, raw call", "put, raw call", "put", "get"];
    assert_eq!(of(1)[..4], one);
    assert_eq!(of(1)[4..], ["put, other thread"]);
    assert_eq!(of(3)[4..], ["put, one client", "get, one client", "put, other thread"]);
    for row in &rows {
        assert!(row["per_second"].as_f64() > Some(0.0), "{row}");
        assert!(row["p50_ns"].as_u64() <= row["p99_ns"].as_u64(), "{row}");
        assert_eq!((&row["wrong"], &row["transport"]), (&0.into(), &"shm".into()));
    }
}

/// Runs the attacks that must not fail honest calls, in the shortest windows with enough calls.
#[test]
fn attacks__leave_honest_calls_alone() {
    let output = petrel(&[
        "bench",
        "--json",
        "attacks",
        "--attack",
        "second-link,spray",
        "--rounds",
        "1",
        "--window",
        "1s",
    ]);
    let figures = records(&output);
    assert_eq!(figures.len(), 2, "{output:?}");
    for figure in &figures {
        assert_eq!((&figure["failed"], &figure["newcomers_failed"]), (&0.into(), &0.into()));
        for field in ["honest", "newcomers", "memory_before", "memory_peak", "memory_after"] {
            assert!(figure[field].as_u64().is_some_and(|count| count > 0), "{field}: {figure}");
        }
        for field in ["ratio", "ratio_beside", "management_calm", "management_attacked"] {
            assert!(figure[field].as_f64().is_some_and(|ratio| ratio >= 0.0), "{field}: {figure}");
        }
        assert!(figure["command"].as_str().unwrap().starts_with("petrel bench --json attacks "));
    }
}
