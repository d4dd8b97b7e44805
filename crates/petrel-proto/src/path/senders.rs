//! The sessions of an endpoint that send over several paths at the same time: they share the link of their host.
//!
//! A switch marks packets that wait, and a host's own link marks none. If this link is the narrowest, the windows of long
//! requests grow to their largest, and small requests of further sessions wait behind full windows.

/// Sessions count as sending together within a span of this power of two, in nanoseconds: 66 µs, some round trips of a
/// datacentre.
const SPAN_LOG2: u32 = 16;

/// Counts the sessions that send.
#[derive(Debug, Default)]
pub(crate) struct Senders {
    /// The number of the present span, modulo 2^32.
    span: u32,
    /// Sessions that have sent in this span.
    count: u32,
    /// Sessions that have sent in the span before.
    before: u32,
}

/// The last span in which a session has sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastSpan(u32);

impl LastSpan {
    pub(crate) const NEVER: Self = Self(u32::MAX);
}

impl Senders {
    /// Notes that a session is about to send. Returns true if another session sends, too.
    pub(crate) fn note(&mut self, now_ns: u64, last: &mut LastSpan) -> bool {
        let span = (now_ns >> SPAN_LOG2) as u32;
        if span != self.span {
            let count = std::mem::take(&mut self.count);
            self.before = if span == self.span.wrapping_add(1) { count } else { 0 };
            self.span = span;
        }
        if last.0 != span {
            last.0 = span;
            self.count += 1;
        }
        self.count.max(self.before) > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN_NS: u64 = 1 << SPAN_LOG2;

    #[test]
    fn note__of_a_session_alone_and_of_two() {
        let (mut senders, mut one, mut other) =
            (Senders::default(), LastSpan::NEVER, LastSpan::NEVER);
        assert!((0..10).all(|span| !senders.note(span * SPAN_NS / 2, &mut one)), "it is alone");
        // The first one may have ended.
        assert!(!senders.note(5 * SPAN_NS, &mut other));
        assert!(senders.note(5 * SPAN_NS + 1, &mut one));
        assert!(senders.note(5 * SPAN_NS + 2, &mut other));
        // The second session sent in the previous span.
        assert!(senders.note(6 * SPAN_NS, &mut one));
        assert!(!senders.note(7 * SPAN_NS, &mut one), "the other one has ended");
    }

    #[test]
    fn note__after_a_pause_of_all() {
        let (mut senders, mut one, mut other) =
            (Senders::default(), LastSpan::NEVER, LastSpan::NEVER);
        senders.note(3 * SPAN_NS, &mut one);
        assert!(senders.note(3 * SPAN_NS, &mut other));
        assert!(!senders.note(5 * SPAN_NS, &mut other));
    }
}
