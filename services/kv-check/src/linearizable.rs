//! The linearizability checker: porcupine, as a separate program that is built where Go is available.
//!
//! Histories of thousands of seeds have writes with unknown effect, which may take effect at any later time. Porcupine
//! implements Wing and Gong's algorithm with Lowe's cache. Porcupine remembers sets of operations with the resulting
//! states, and checks keys separately. Checkers without a cache try all orders, and take exponential time on these
//! histories.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::history::{History, Operation};

/// The directory of the program's source.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/porcupine");

/// Timeout of the checker for one history.
const LIMIT: &str = "120s";

/// The checker's verdict on a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Ok,
    Illegal,
    /// The check timed out.
    Unknown,
}

#[derive(Deserialize)]
struct Line {
    verdict: Verdict,
}

#[derive(Serialize)]
struct Lines<'a> {
    has_scans: bool,
    operations: Vec<&'a Operation>,
}

/// A running checker.
pub(crate) struct Checker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// The program, built at the first call; or the reason why it does not exist.
pub(crate) fn program() -> &'static Result<PathBuf, String> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    PROGRAM.get_or_init(build)
}

fn build() -> Result<PathBuf, String> {
    if !Path::new(SOURCE).is_dir() {
        return Err(format!("{SOURCE} is not here"));
    }
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let program = own.with_file_name(format!("petrel-kv-linearizable-{}", std::process::id()));
    let built = Command::new("go")
        // The repository may belong to another user, and git then reports no revision.
        .args(["build", "-buildvcs=false", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(SOURCE)
        .output()
        .map_err(|error| format!("`go` cannot be run: {error}"))?;
    if built.status.success() {
        // Renames the program atomically, because other processes may build it concurrently.
        let shared = own.with_file_name("petrel-kv-linearizable");
        std::fs::rename(&program, &shared).map_err(|error| error.to_string())?;
        return Ok(shared);
    }
    let why = String::from_utf8_lossy(&built.stderr).trim().to_owned();
    Err(format!("`go build` in {SOURCE} fails: {why}"))
}

impl Checker {
    /// Starts the program, if it exists.
    pub(crate) fn start() -> Option<Self> {
        let program = program().as_ref().ok()?;
        let mut child = Command::new(program)
            .arg(LIMIT)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let (input, output) = (child.stdin.take()?, child.stdout.take()?);
        Some(Self { child, input, output: BufReader::new(output) })
    }

    /// Checks a history, with the operations that may have taken effect.
    pub(crate) fn check(&mut self, history: &History, has_scans: bool) -> Result<Verdict, String> {
        let lines = Lines { has_scans, operations: history.possible() };
        let mut line = serde_json::to_string(&lines).map_err(|error| error.to_string())?;
        line.push('\n');
        let broken = |error: std::io::Error| format!("the checker of linearizability: {error}");
        self.input.write_all(line.as_bytes()).map_err(broken)?;
        let mut answer = String::new();
        self.output.read_line(&mut answer).map_err(broken)?;
        let line: Line = serde_json::from_str(&answer)
            .map_err(|error| format!("the checker of linearizability says {answer:?}: {error}"))?;
        Ok(line.verdict)
    }
}

impl Drop for Checker {
    fn drop(&mut self) {
        // The program has no state to lose.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Expectation, Found, Invocation, Response};

    fn put(tag: &str) -> Invocation {
        Invocation::Put { key: 1, tag: tag.to_owned() }
    }

    fn changed(index: u64, was_there: bool) -> Response {
        Response::Changed { index, was_there }
    }

    fn found(tag: &str, revision: u64) -> Response {
        Response::Found(vec![Found { key: 1, tag: tag.to_owned(), revision }])
    }

    /// The verdicts on consecutive operations, without and with scans; operations without a result stay open.
    fn verdict(operations: &[(Invocation, Option<Response>)]) -> Option<[Verdict; 2]> {
        let Some(mut checker) = Checker::start() else {
            petrel_skip::skip(petrel_skip::Need::Go, program().as_ref().unwrap_err());
            return None;
        };
        let mut history = History::default();
        for (client, (invocation, response)) in (1..).zip(operations) {
            let id = history.begin(client, invocation.clone());
            if let Some(response) = response {
                // Other tests cover these rules.
                let _ = history.end(id, response.clone());
            }
        }
        Some([false, true].map(|has_scans| checker.check(&history, has_scans).unwrap()))
    }

    #[test]
    fn check__a_history_in_order_is_fine() {
        let cas = |revision| Invocation::Cas {
            key: 1,
            expected: Expectation::Revision(revision),
            tag: "b".to_owned(),
        };
        let verdict = verdict(&[
            (Invocation::Get { key: 1 }, Some(Response::Found(vec![]))),
            (put("a"), Some(changed(5, false))),
            (cas(4), Some(Response::Mismatch { index: 6, revision: 5 })),
            (cas(5), Some(changed(7, true))),
            (Invocation::Get { key: 1 }, Some(found("b", 7))),
            (Invocation::Delete { key: 1 }, Some(changed(8, true))),
            (Invocation::Get { key: 1 }, Some(Response::Found(vec![]))),
        ]);
        assert!(verdict.is_none_or(|verdict| verdict == [Verdict::Ok; 2]));
    }

    #[test]
    fn check__what_is_without_an_end_may_take_effect_later_or_never() {
        let open = (put("a"), None);
        let later = [
            open.clone(),
            (Invocation::Get { key: 1 }, Some(Response::Found(vec![]))),
            (put("b"), Some(changed(5, false))),
            (Invocation::Get { key: 1 }, Some(found("a", 9))),
        ];
        assert!(verdict(&later).is_none_or(|verdict| verdict == [Verdict::Ok; 2]));
        let twice = [
            open,
            (Invocation::Get { key: 1 }, Some(found("a", 4))),
            (put("b"), Some(changed(5, true))),
            (Invocation::Get { key: 1 }, Some(found("a", 9))),
        ];
        assert!(verdict(&twice).is_none_or(|verdict| verdict == [Verdict::Illegal; 2]));
    }

    #[test]
    fn check__old_reads_and_lost_writes_are_found() {
        let old = [
            (put("a"), Some(changed(5, false))),
            (put("b"), Some(changed(6, true))),
            (Invocation::Get { key: 1 }, Some(found("a", 5))),
        ];
        assert!(verdict(&old).is_none_or(|verdict| verdict == [Verdict::Illegal; 2]));
        let lost = [
            (put("a"), Some(changed(5, false))),
            (Invocation::Get { key: 1 }, Some(Response::Found(vec![]))),
        ];
        assert!(verdict(&lost).is_none_or(|verdict| verdict == [Verdict::Illegal; 2]));
    }

    #[test]
    fn check__a_scan_is_of_one_moment() {
        let put = |key: u8, index| {
            let tag = format!("{key}.{index}");
            let invocation = Invocation::Put { key, tag: tag.clone() };
            ((invocation, Some(changed(index, false))), Found { key, tag, revision: index })
        };
        let ((first, one), (second, two)) = (put(1, 5), put(2, 6));
        let scan =
            |found| (Invocation::Scan { from: 0, until: 5, max: 9 }, Some(Response::Found(found)));
        let check =
            |operations: &[(Invocation, Option<Response>)]| verdict(operations).map(|[_, all]| all);
        let whole = [first.clone(), second.clone(), scan(vec![one.clone(), two.clone()])];
        assert!(check(&whole).is_none_or(|verdict| verdict == Verdict::Ok));
        let torn = [first, second, scan(vec![two])];
        assert!(check(&torn).is_none_or(|verdict| verdict == Verdict::Illegal));
    }
}
