//! Boxes that a few slots need at a time, kept for the next ones: nothing is allocated for a large
//! message once the endpoint has sent some, and an idle session holds nothing of it.

/// Boxes kept at most; at some 2.4 KB each, a few megabytes. With more large messages on the way at
/// a time, their boxes are allocated anew.
const KEPT_MAX: usize = 1024;

/// What can be used again.
pub(crate) trait Reusable {
    /// One that was never used.
    fn fresh() -> Self;

    /// Makes a used one as good as fresh.
    fn reset(&mut self);
}

/// The boxes that nobody uses now.
pub(crate) struct Spare<P> {
    kept: Vec<Box<P>>,
}

impl<P: Reusable> Spare<P> {
    pub(crate) fn new() -> Self {
        Self { kept: Vec::new() }
    }

    #[cold]
    pub(crate) fn take(&mut self) -> Box<P> {
        let Some(mut used) = self.kept.pop() else { return Box::new(P::fresh()) };
        used.reset();
        used
    }

    /// Takes back the box of a slot, if it has one.
    #[inline]
    pub(crate) fn take_back(&mut self, from: &mut Option<Box<P>>) {
        if let Some(used) = from.take() {
            self.keep(used);
        }
    }

    #[cold]
    fn keep(&mut self, used: Box<P>) {
        if self.kept.len() < KEPT_MAX {
            self.kept.push(used);
        }
    }
}
