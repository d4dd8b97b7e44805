//! Lookups as futures: the form of the idea in many languages and libraries.
//!
//! A future yields after each prefetch, and the executor polls a group of futures in turn, with a waker that does nothing.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use petrel_batch::prefetch;

/// Fetches a line, and lets other futures run once.
pub(crate) fn fetched<T>(value: &T) -> Fetched {
    prefetch(std::ptr::from_ref(value).cast());
    Fetched(false)
}

/// The future that [`fetched`] returns.
pub(crate) struct Fetched(bool);

impl Future for Fetched {
    type Output = ();

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        match std::mem::replace(&mut self.0, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

/// Runs a future per input, `width` at a time. The memory of the futures is allocated once.
pub(crate) fn run<I: Copy, F: Future>(
    width: usize,
    inputs: &[I],
    make: impl Fn(I) -> F,
    mut each: impl FnMut(F::Output),
) {
    let mut context = Context::from_waker(Waker::noop());
    let mut lanes: Vec<Pin<Box<Option<F>>>> = (0..width).map(|_| Box::pin(None)).collect();
    let mut inputs = inputs.iter();
    let mut live = width;
    let mut lane = 0;
    while live > 0 {
        if lane >= live {
            lane = 0;
        }
        if let Some(future) = lanes[lane].as_mut().as_pin_mut() {
            match future.poll(&mut context) {
                Poll::Pending => {
                    lane += 1;
                    continue;
                }
                Poll::Ready(result) => each(result),
            }
        }
        match inputs.next() {
            Some(input) => lanes[lane].set(Some(make(*input))),
            None => {
                live -= 1;
                lanes.swap(lane, live);
            }
        }
    }
}
