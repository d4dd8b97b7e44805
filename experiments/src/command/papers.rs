//! `papers`: runs the commands of pages again, and compares their output with the pages.
//!
//! A block of a page that begins with a line ```` ```console ```` and a line `$ COMMAND` has the output of the command. Only
//! programs of the experiments' workspace are run, those beside this program.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;

use crate::args::PapersArgs;

/// A command of a page, and its output there.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    command: String,
    lines: Vec<String>,
}

/// A number may change by this share before the change is told.
const TOLD_SHARE: f64 = 0.1;

/// Runs every command, and tells what has changed.
pub(super) fn run(args: &PapersArgs, output: Output) -> Result<Outcome, Failure> {
    let mut changed = 0;
    for page in &args.pages {
        let blocks = blocks(&std::fs::read_to_string(page)?);
        if blocks.is_empty() {
            return Err(Failure::because(format!("{} has no command with output", page.display())));
        }
        for block in blocks {
            let lines = output_of(&block.command)?;
            let changes = changes(&block.lines, &lines, args.equal);
            changed += changes.len();
            let verdict = if changes.is_empty() { "the same" } else { "changed" };
            output.line(format_args!("{}: {}: {verdict}", page.display(), block.command))?;
            for (before, after) in changes {
                output.line(format_args!("  - {before}\n  + {after}"))?;
            }
        }
    }
    Ok(if changed == 0 { Outcome::Success } else { Outcome::Failure })
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while lines.any(|line| line == "```console") {
        let Some(command) = lines.next().and_then(|line| line.strip_prefix("$ ")) else { continue };
        let output = lines.by_ref().take_while(|line| *line != "```");
        let output: Vec<String> = output.map(|line| line.trim_end().to_owned()).collect();
        if !output.is_empty() {
            blocks.push(Block { command: command.to_owned(), lines: output });
        }
    }
    blocks
}

/// Returns the lines that a program prints, without lines at the ends that are empty.
fn output_of(command: &str) -> Result<Vec<String>, Failure> {
    let mut words = command.split_whitespace();
    let name = words.next().unwrap_or_default();
    let program: PathBuf = std::env::current_exe()?.parent().unwrap_or(Path::new(".")).join(name);
    let run = Command::new(program).args(words).stderr(Stdio::null()).output()?;
    if !run.status.success() {
        return Err(Failure::from(std::io::Error::other(format!("failed: {command}"))));
    }
    let text = String::from_utf8_lossy(&run.stdout);
    Ok(text.trim_matches('\n').lines().map(|line| line.trim_end().to_owned()).collect())
}

/// Returns the lines that differ: in any character, or in a number by more than a tenth.
fn changes(before: &[String], after: &[String], is_exact: bool) -> Vec<(String, String)> {
    let count = before.len().max(after.len());
    let at = |lines: &[String], line: usize| lines.get(line).cloned().unwrap_or_default();
    let pairs = (0..count).map(|line| (at(before, line), at(after, line)));
    pairs.filter(|(a, b)| if is_exact { a != b } else { !are_near(a, b) }).collect()
}

fn are_near(before: &str, after: &str) -> bool {
    let words =
        |line: &str| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
    let (before, after) = (words(before), words(after));
    let is_near = |(a, b): (&String, &String)| match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(a), Ok(b)) => (a - b).abs() <= TOLD_SHARE * a.abs(),
        _ => a == b,
    };
    before.len() == after.len() && before.iter().zip(&after).all(is_near)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str =
        "text\n```console\n$ petrel-paths seeds=1-2\nrow 1.00 2\n```\n```sh\n$ no\n```\n";

    #[test]
    fn blocks__are_those_with_output() {
        let block = Block {
            command: "petrel-paths seeds=1-2".to_owned(),
            lines: vec!["row 1.00 2".to_owned()],
        };
        assert_eq!(blocks(PAGE), [block]);
        assert_eq!(blocks("```console\n$ petrel-paths\n```\n"), []);
    }

    #[test]
    fn changes__of_numbers_are_told_from_a_tenth_on() {
        let lines = |text: &str| vec![text.to_owned()];
        let count =
            |after: &str, is_exact| changes(&lines("row 1.00 2"), &lines(after), is_exact).len();
        assert_eq!([count("row 1.05 2", false), count("row 1.05 2", true)], [0, 1]);
        assert_eq!([count("row 1.2 2", false), count("line 1.00 2", false)], [1, 1]);
        assert_eq!(count("row 1.00 2", true), 0);
        assert_eq!(changes(&lines("a"), &[], false).len(), 1);
    }
}
