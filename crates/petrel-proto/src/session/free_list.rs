//! A free list of boxes with the state for messages of several packets. An idle session holds no box, and an endpoint
//! that has sent some large messages allocates nothing for further large messages.

/// Most boxes on the free list: at some 2.4 KB each, a few megabytes. Boxes beyond are freed, and allocated
/// again when needed.
const KEPT_MAX: usize = 1024;

/// A type whose values can be used again.
pub(crate) trait Reusable {
    /// Returns a new value.
    fn fresh() -> Self;

    /// Makes a used value equal to a new value.
    fn reset(&mut self);
}

/// The free list.
pub(crate) struct FreeList<P> {
    kept: Vec<Box<P>>,
}

impl<P: Reusable> FreeList<P> {
    pub(crate) fn new() -> Self {
        Self { kept: Vec::new() }
    }

    #[cold]
    pub(crate) fn take(&mut self) -> Box<P> {
        let Some(mut used) = self.kept.pop() else { return Box::new(P::fresh()) };
        used.reset();
        used
    }

    /// Puts the slot's box, if any, on the free list.
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
