//! A replica's log on standard error: lines with the time, the level, and the values by name.

use std::collections::BTreeMap;
use std::fmt::{Arguments, Write as _};
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use slog::{Drain, KV as _, Key, Level, Logger, Never, OwnedKVList, Record, Serializer, o};
use time::OffsetDateTime;

use crate::log::EventLevel;

/// Creates a logger that writes records of at least the severity of `--log`: by default elections and changes of members,
/// warnings and errors.
pub(super) fn logger(level: Option<EventLevel>) -> Logger {
    let level = match level {
        Some(EventLevel::Error) => Level::Error,
        Some(EventLevel::Warn) => Level::Warning,
        None | Some(EventLevel::Info) => Level::Info,
        Some(EventLevel::Debug) => Level::Debug,
    };
    Logger::root(Lines { level, repeated: Mutex::default() }, o!())
}

struct Lines {
    level: Level,
    repeated: Mutex<Repeated>,
}

/// Time between two lines of the same warning. A replica without admission asks twenty times a second.
const WARNING_EVERY: Duration = Duration::from_secs(1);

/// Warnings by their place in the source code: the time of the last line, and the number of omitted
/// lines since. The map has at most as many entries as the program has such places.
#[derive(Default)]
struct Repeated(BTreeMap<(&'static str, u32), (Instant, u64)>);

impl Repeated {
    /// Returns the number of previously omitted lines; `None` if the new line is to be omitted too.
    fn note(&mut self, location: (&'static str, u32), now: Instant) -> Option<u64> {
        let Some((last, left_out)) = self.0.get_mut(&location) else {
            self.0.insert(location, (now, 0));
            return Some(0);
        };
        if now.duration_since(*last) < WARNING_EVERY {
            *left_out += 1;
            return None;
        }
        *last = now;
        Some(std::mem::take(left_out))
    }
}

impl Drain for Lines {
    type Ok = ();
    type Err = Never;

    fn log(&self, record: &Record<'_>, values: &OwnedKVList) -> Result<(), Never> {
        if record.level().is_at_least(self.level) {
            let mut left_out = 0;
            if record.level() == Level::Warning {
                let mut repeated = self.repeated.lock().unwrap_or_else(PoisonError::into_inner);
                let location = (record.file(), record.line());
                let Some(before) = repeated.note(location, Instant::now()) else { return Ok(()) };
                left_out = before;
            }
            let line = line(SystemTime::now(), record, values, left_out);
            // If standard error is closed, the line is dropped.
            let _ = std::io::stderr().lock().write_all(line.as_bytes());
        }
        Ok(())
    }
}

fn line(now: SystemTime, record: &Record<'_>, values: &OwnedKVList, left_out: u64) -> String {
    let level = record.level().as_short_str();
    let mut line = Line(format!("{} {level} {}", utc(now), record.msg()));
    // Writing to a string cannot fail.
    let _ = record.kv().serialize(record, &mut line);
    let _ = values.serialize(record, &mut line);
    if left_out > 0 {
        let _ = write!(line.0, " left_out={left_out}");
    }
    line.0.push('\n');
    line.0
}

struct Line(String);

impl Serializer for Line {
    fn emit_arguments(&mut self, key: Key, value: &Arguments<'_>) -> slog::Result {
        let value = value.to_string();
        // A quoted value cannot end the line, and its end is visible.
        let quoted =
            value.is_empty() || value.contains(|letter: char| letter.is_control() || letter == ' ');
        let written = match quoted {
            true => write!(self.0, " {key}={value:?}"),
            false => write!(self.0, " {key}={value}"),
        };
        Ok(written?)
    }
}

/// Returns the time in UTC, to the millisecond.
fn utc(now: SystemTime) -> String {
    let now = OffsetDateTime::from(now);
    let (year, month, day) = now.to_calendar_date();
    let (hour, minute, second, milli) = now.to_hms_milli();
    let month = u8::from(month);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn repeated__one_line_a_second_and_each_says_how_many_were_left_out() {
        let (mut repeated, begin) = (Repeated::default(), Instant::now());
        let mut at =
            |line, millis| repeated.note(("file", line), begin + Duration::from_millis(millis));
        assert_eq!(at(1, 0), Some(0));
        let written: Vec<_> = (1..60).filter_map(|step| at(1, 50 * step)).collect();
        assert_eq!(written, [19, 19]);
        assert_eq!(at(2, 1), Some(0), "another warning");
        assert_eq!(at(1, 10_000), Some(19));
    }

    #[test]
    fn line__stays_one_line() {
        let values = OwnedKVList::from(o!("node" => 7, "why" => "two\nlines"));
        let arguments = format_args!("it began");
        let location = slog::record_static!(Level::Info, "");
        let record = Record::new(&location, &arguments, slog::BorrowedKV(&()));
        let line = line(UNIX_EPOCH, &record, &values, 3);
        assert!(line.starts_with("1970-01-01T00:00:00.000Z INFO it began"), "{line}");
        assert!(line.contains(" node=7") && line.contains(r#" why="two\nlines""#), "{line}");
        assert!(line.ends_with(" left_out=3\n"), "{line}");
        assert_eq!(line.matches('\n').count(), 1);
    }
}
