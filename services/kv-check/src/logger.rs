//! Log lines of replicas and their Raft cores, for the trace. Any thread may use a logger, but a fabric belongs to one
//! thread. Lines therefore wait here until the end of the turn.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use petrel_sim::fabric::{FabricHandle, HostId};
use slog::{Drain, KV, Level, Logger, Never, OwnedKVList, Record, o};

thread_local! {
    static SAID: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Has a function take each line.
struct Lines(fn(Level, String));

struct Pairs<'a>(&'a mut String);

impl Drain for Lines {
    type Ok = ();
    type Err = Never;

    fn log(&self, record: &Record<'_>, _: &OwnedKVList) -> Result<(), Never> {
        self.0(record.level(), line_of(record));
        Ok(())
    }
}

/// Writes lines of level info and above to standard error; the rest only helps to debug the core.
fn write(level: Level, line: String) {
    if level.is_at_least(Level::Info) {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let line = format!("{:.3} {line}\n", at.as_secs_f64());
        // The other end may be closed.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

fn line_of(record: &Record<'_>) -> String {
    let mut line = format!("{} {}", record.level(), record.msg());
    // Writing to a string does not fail.
    let _ = record.kv().serialize(record, &mut Pairs(&mut line));
    line
}

impl slog::Serializer for Pairs<'_> {
    fn emit_arguments(&mut self, key: slog::Key, value: &std::fmt::Arguments<'_>) -> slog::Result {
        write!(self.0, " {key}={value}").map_err(Into::into)
    }
}

/// A logger that keeps lines until [`flush`].
pub(crate) fn logger() -> Logger {
    Logger::root(Lines(|_, line| SAID.with_borrow_mut(|said| said.push(line))), o!())
}

/// A logger for a separate process.
pub(crate) fn to_stderr() -> Logger {
    Logger::root(Lines(write), o!())
}

/// Moves the waiting lines to the trace.
pub(crate) fn flush(fabric: &FabricHandle, host: HostId) {
    SAID.with_borrow_mut(|said| {
        said.drain(..).for_each(|line| fabric.note(format_args!("{host} {line}")))
    });
}
