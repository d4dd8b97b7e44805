//! Tests that restart themselves in a separate network namespace. They need the programs `unshare` and `ip`, and root
//! or user namespaces.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use petrel_skip::{Need, skip};

/// Set in the process inside the namespace.
const INSIDE: &str = "PETREL_TEST_IN_OWN_NETWORK";

/// The last line printed inside: to the harness, a filter that matches no test is a success.
const DONE: &str = "done in a network of its own";

/// A test's requirements of the namespace, tried in advance.
pub(crate) struct Trial<'a> {
    /// For people: the missing requirement if the trial fails.
    pub(crate) what: &'a str,
    /// A short version of the test's operations.
    pub(crate) script: &'a str,
    /// The script's input.
    pub(crate) input: &'a str,
}

/// Runs a test in a separate network, or reports why not. `test` is the name in the module of this path, as returned by
/// `module_path!`.
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
    // The harness's names omit the program's.
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

/// Returns the flags with which `unshare` creates a network namespace for the user.
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
