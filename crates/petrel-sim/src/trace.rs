//! A record of everything, one line for each event.
//!
//! A line has the time in nanoseconds, what it is about, and what happened:
//!
//! ```text
//! 1535.200 h0:1->h1:1 #0 [REQ 7] len=64 at h1 ARRIVE
//! 1602.000 h1:1->h0:1 #1 [RESP 7] len=48 on h1>h0 DROP(loss)
//! ```
//!
//! The text in brackets is the user's, who knows what the frames mean.

use std::collections::VecDeque;

/// Describes a frame: appends to the string, without a line break. The frame may be corrupted.
pub type FrameDecoder = Box<dyn Fn(&[u8], &mut String)>;

/// Takes each line as it is written.
pub type LineSink = Box<dyn FnMut(&str)>;

/// Where lines go, and how frames are described.
#[derive(Default)]
pub struct Trace {
    keep: usize,
    lines: VecDeque<String>,
    decoder: Option<FrameDecoder>,
    sink: Option<LineSink>,
}

impl Trace {
    /// No trace: it costs nothing.
    pub fn off() -> Self {
        Self::default()
    }

    /// Keeps the last `keep` lines.
    pub fn last(keep: usize) -> Self {
        Self { keep, ..Self::default() }
    }

    /// Also describes frames.
    #[must_use]
    pub fn with_decoder(mut self, decoder: impl Fn(&[u8], &mut String) + 'static) -> Self {
        self.decoder = Some(Box::new(decoder));
        self
    }

    /// Also hands each line on at once.
    #[must_use]
    pub fn with_sink(mut self, sink: impl FnMut(&str) + 'static) -> Self {
        self.sink = Some(Box::new(sink));
        self
    }

    /// Whether anything is recorded.
    pub fn is_on(&self) -> bool {
        self.keep > 0 || self.sink.is_some()
    }

    /// The lines kept, oldest first.
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

    /// An empty string: the memory of the oldest line, when that has to go.
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
