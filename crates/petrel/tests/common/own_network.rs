//! Tests that start themselves again in a network namespace of their own, which takes the programs `unshare` and
//! `ip`, and root or user namespaces.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use petrel_skip::{Need, skip};

/// Set in the process that is in the namespace.
const INSIDE: &str = "PETREL_TEST_IN_OWN_NETWORK";

/// The inside's last words: a filter that matches no test is a success for the harness.
const DONE: &str = "done in a network of its own";

/// What a test needs of its namespace, tried before it is run there.
pub(crate) struct Trial<'a> {
    /// For people: what there is not where it fails.
    pub(crate) what: &'a str,
    /// Does in short what the test will do.
    pub(crate) script: &'a str,
    /// The script's input.
    pub(crate) input: &'a str,
}

/// Runs a test in a network of its own, or says why that cannot be: the one of this name in the module of this path, as
/// `module_path!` gives it.
pub(crate) fn in_own_network(trial: &Trial<'_>, module: &str, test: &str, inside: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        inside();
        println!("{DONE}");
        return;
    }
    let flags = match way_in(trial) {
        Ok(flags) => flags,
        Err(why) => return skip(Need::Namespaces, format!("no {}: {why}", trial.what)),
    };
    // The harness's names begin below the program's.
    let test = match module.split_once("::") {
        Some((_program, module)) => format!("{module}::{test}"),
        None => test.to_owned(),
    };
    let own = std::env::current_exe().unwrap();
    let start = r#"ip link set lo up && exec "$0" --exact "$1" --nocapture 2>&1"#;
    let own = own.to_str().expect("the test's path is text");
    let arguments: Vec<&str> = flags.split(' ').chain(["sh", "-c", start, own, &test]).collect();
    let output = Command::new("unshare").args(&arguments).env(INSIDE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains(DONE), "{said}");
}

/// The flags by which `unshare` gives this user such a namespace.
fn way_in(trial: &Trial<'_>) -> Result<&'static str, String> {
    let flags = ["--net", "--user --map-root-user --net"];
    let mut ways = flags.iter().map(|flags| {
        let arguments: Vec<&str> = flags.split(' ').chain(["sh", "-c", trial.script]).collect();
        run("unshare", &arguments, trial.input).map(|_| *flags)
    });
    let first = ways.next().expect("there are two");
    first.or_else(|why| ways.next().expect("there are two").map_err(|_| why))
}

/// Runs a program with this input; the error is for people.
pub(crate) fn run(program: &str, arguments: &[&str], input: &str) -> Result<Output, String> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("`{program}` cannot be run: {error}"))?;
    let written = child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    match (output.status.success(), written) {
        (true, Some(Ok(()))) => Ok(output),
        _ => Err(format!("`{program}`: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}
