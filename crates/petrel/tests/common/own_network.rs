//! Tests that restart themselves in a separate network namespace. They need the programs `unshare` and `ip`, and root
//! or user namespaces.

use std::path::Path;

use petrel_netns::{Isolation, Namespaces};
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
    let namespaces = match Namespaces::find(Isolation::Network, trial.script, trial.input) {
        Ok(namespaces) => namespaces,
        Err(why) => return skip(Need::Namespaces, format!("no {}: {why}", trial.what)),
    };
    // The harness's names omit the program's.
    let test = match module.split_once("::") {
        Some((_program, module)) => format!("{module}::{test}"),
        None => test.to_owned(),
    };
    let own = std::env::current_exe().unwrap();
    let start = r#"ip link set lo up && exec "$0" --exact "$1" --nocapture 2>&1"#;
    let mut command = namespaces.command(Path::new("sh"));
    let output = command.args(["-c", start]).arg(own).arg(test).env(INSIDE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains(DONE), "{said}");
    // The figures of long runs; the harness shows them by `--nocapture`.
    print!("{said}");
}
