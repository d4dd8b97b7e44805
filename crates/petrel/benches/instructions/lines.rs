//! From addresses to functions and lines, by binutils' addr2line.

use std::collections::HashMap;
use std::io::Write;
use std::process::{Command, Stdio};

/// The function and line to which an instruction counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Frame {
    pub(crate) function: String,
    /// Path within the workspace, for code of Petrel.
    pub(crate) file: String,
    pub(crate) line: String,
}

/// Returns the frame of each address.
///
/// # Errors
/// Why addr2line failed.
pub(crate) fn of(addresses: &[u64]) -> Result<HashMap<u64, Frame>, String> {
    let program = std::env::current_exe().map_err(|error| format!("no own path: {error}"))?;
    let mut child = Command::new("addr2line")
        .args(["--addresses", "--functions", "--inlines", "--demangle", "--exe"])
        .arg(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("--profile needs addr2line, of binutils: {error}"))?;
    let mut stdin = child.stdin.take().ok_or("addr2line has no input")?;
    let list: String = addresses.iter().map(|address| format!("{address:#x}\n")).collect();
    // addr2line answers line by line: a separate thread feeds it, to avoid a deadlock.
    let feeder = std::thread::spawn(move || stdin.write_all(list.as_bytes()));
    let output = child.wait_with_output().map_err(|error| format!("addr2line: {error}"))?;
    let fed = feeder.join().map_err(|_| "the thread that feeds addr2line panicked")?;
    fed.map_err(|error| format!("addr2line: {error}"))?;
    Ok(parse(&String::from_utf8_lossy(&output.stdout)))
}

/// Parses addr2line's output: an address, then a pair of lines for each function, innermost first.
fn parse(text: &str) -> HashMap<u64, Frame> {
    let mut frames = HashMap::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let digits = line.strip_prefix("0x").unwrap_or_default();
        let Ok(address) = u64::from_str_radix(digits, 16) else { continue };
        let mut stack = Vec::new();
        while let Some(function) = lines.next_if(|line| !line.starts_with("0x")) {
            stack.push(Frame::read(function, lines.next().unwrap_or_default()));
        }
        // The innermost frame of Petrel: `mem::replace` counts for its caller.
        let own = stack.iter().find(|frame| frame.is_own()).or(stack.first());
        frames.insert(address, own.cloned().unwrap_or_default());
    }
    frames
}

impl Frame {
    fn read(function: &str, position: &str) -> Self {
        let (path, line) = position.rsplit_once(':').unwrap_or((position, "?"));
        // A remark on the line's basic block may follow it.
        let line = line.split(' ').next().unwrap_or_default();
        Self { function: function.to_owned(), file: short(path), line: line.to_owned() }
    }

    fn is_own(&self) -> bool {
        !self.file.starts_with(['/', '?', '('])
    }
}

/// Removes the common prefix of paths in the workspace, and in the standard library.
fn short(path: &str) -> String {
    let workspace = env!("CARGO_MANIFEST_DIR").trim_end_matches("crates/petrel");
    match (path.strip_prefix(workspace), path.split_once("/library/")) {
        (Some(own), _) => own.to_owned(),
        (None, Some((_, std))) => format!("(std) {std}"),
        (None, None) => path.to_owned(),
    }
}
