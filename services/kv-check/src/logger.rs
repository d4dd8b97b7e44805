//! What replicas and their Raft cores have to say, for the trace. A logger may be used by any thread, and a fabric
//! belongs to one: what is said in a turn waits here until the turn is over.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use petrel_sim::fabric::{FabricHandle, HostId};
use slog::{Drain, KV, Logger, Never, OwnedKVList, Record, o};

thread_local! {
    static SAID: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

struct Keeper;

struct Pairs<'a>(&'a mut String);

impl Drain for Keeper {
    type Ok = ();
    type Err = Never;

    fn log(&self, record: &Record<'_>, _: &OwnedKVList) -> Result<(), Never> {
        SAID.with_borrow_mut(|said| said.push(line_of(record)));
        Ok(())
    }
}

/// Writes to standard error what is not for those who look for defects of the core.
struct Writer;

impl Drain for Writer {
    type Ok = ();
    type Err = Never;

    fn log(&self, record: &Record<'_>, _: &OwnedKVList) -> Result<(), Never> {
        if record.level().is_at_least(slog::Level::Info) {
            let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let line = format!("{:.3} {}\n", at.as_secs_f64(), line_of(record));
            // Nobody may read it.
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
        Ok(())
    }
}

fn line_of(record: &Record<'_>) -> String {
    let mut line = format!("{} {}", record.level(), record.msg());
    // It only writes into a string.
    let _ = record.kv().serialize(record, &mut Pairs(&mut line));
    line
}

impl slog::Serializer for Pairs<'_> {
    fn emit_arguments(&mut self, key: slog::Key, value: &std::fmt::Arguments<'_>) -> slog::Result {
        write!(self.0, " {key}={value}").map_err(Into::into)
    }
}

/// A logger whose words wait until [`flush`].
pub(crate) fn logger() -> Logger {
    Logger::root(Keeper, o!())
}

/// A logger of a process of its own.
pub(crate) fn to_stderr() -> Logger {
    Logger::root(Writer, o!())
}

/// Puts what was said into the trace.
pub(crate) fn flush(fabric: &FabricHandle, host: HostId) {
    SAID.with_borrow_mut(|said| {
        said.drain(..).for_each(|line| fabric.note(format_args!("{host} {line}")))
    });
}
