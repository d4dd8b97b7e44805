//! A record of all events, with a line per event.
//!
//! A line has the time in nanoseconds, the subject, and the event:
//!
//! ```text
//! 1535.200 h0:1->h1:1 #0 [REQ 7] len=64 at h1 ARRIVE
//! 1602.000 h1:1->h0:1 #1 [RESP 7] len=48 on h1>h0 DROP(loss)
//! ```
//!
//! The user's decoder writes the text in brackets, because the fabric does not know the format of frames.

use std::collections::VecDeque;

/// Describes a frame: appends to the string, without a line break. The frame may be corrupted.
pub type FrameDecoder = Box<dyn Fn(&[u8], &mut String)>;

/// Receives each line when it is written.
pub type LineSink = Box<dyn FnMut(&str)>;

/// The destination of trace lines, and the decoder for frames.
#[derive(Default)]
pub struct Trace {
    keep: usize,
    lines: VecDeque<String>,
    decoder: Option<FrameDecoder>,
    sink: Option<LineSink>,
}

impl Trace {
    /// Returns a trace that records nothing and costs nothing.
    pub fn off() -> Self {
        Self::default()
    }

    /// Returns a trace that keeps the last `keep` lines.
    pub fn last(keep: usize) -> Self {
        Self { keep, ..Self::default() }
    }

    /// Adds a decoder that describes frames.
    #[must_use]
    pub fn with_decoder(mut self, decoder: impl Fn(&[u8], &mut String) + 'static) -> Self {
        self.decoder = Some(Box::new(decoder));
        self
    }

    /// Adds a sink, which receives every line at once.
    #[must_use]
    pub fn with_sink(mut self, sink: impl FnMut(&str) + 'static) -> Self {
        self.sink = Some(Box::new(sink));
        self
    }

    /// Returns true if lines are recorded.
    pub fn is_on(&self) -> bool {
        self.keep > 0 || self.sink.is_some()
    }

    /// Returns the kept lines, oldest first.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }

    /// Records one line, which `fill` writes into an empty string.
    pub(crate) fn write(&mut self, fill: impl FnOnce(&mut String, Option<&FrameDecoder>)) {
        let mut line = self.recycled();
        fill(&mut line, self.decoder.as_ref());
        if let Some(sink) = &mut self.sink {
            sink(&line);
        }
        if self.keep > 0 {
            self.lines.push_back(line);
        }
    }

    /// Returns an empty string, with the memory of the oldest line if that line has to be dropped.
    fn recycled(&mut self) -> String {
        let oldest = if self.lines.len() >= self.keep { self.lines.pop_front() } else { None };
        let mut line = oldest.unwrap_or_default();
        line.clear();
        line
    }
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trace")
            .field("keep", &self.keep)
            .field("lines", &self.lines.len())
            .field("decodes", &self.decoder.is_some())
            .field("streams", &self.sink.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::RefCell, rc::Rc};

    #[test]
    fn write__keeps_the_last_lines_and_streams_all() {
        let streamed = Rc::new(RefCell::new(Vec::new()));
        let sink = streamed.clone();
        let mut trace =
            Trace::last(2).with_sink(move |line| sink.borrow_mut().push(line.to_owned()));
        for text in ["a", "b", "c"] {
            trace.write(|line, _| line.push_str(text));
        }
        assert_eq!(trace.lines().collect::<Vec<_>>(), ["b", "c"]);
        assert_eq!(*streamed.borrow(), ["a", "b", "c"]);
    }

    #[test]
    fn is_on__only_when_lines_go_somewhere() {
        assert!(!Trace::off().is_on());
        assert!(!Trace::off().with_decoder(|_, _| ()).is_on());
        assert!(Trace::last(1).is_on());
        assert!(Trace::off().with_sink(|_| ()).is_on());
    }
}
