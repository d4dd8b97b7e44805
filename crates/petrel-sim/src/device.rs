//! A device that reads the bodies of frames some time after the flush (eRPC §4.2.2).
//!
//! The packet leaves with the bytes of the push, when the device has read the body. If the body has changed by then, a
//! real device would send other bytes: a panic names the frame.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ptr::NonNull;

use petrel_transport::buf::{READ_IN_PLACE_BYTES_MIN, RegionWatch};

use crate::fabric::{FabricHandle, SimAddr};
use crate::push_check::changed;

#[derive(Debug)]
pub(crate) struct Device {
    fabric: FabricHandle,
    at: SimAddr,
    /// The time from a flush to the reads.
    read_ns: u64,
    /// The number of flushes.
    burst: Cell<u64>,
    waits_at_flush: Cell<bool>,
    waits: Cell<u64>,
    unread: RefCell<VecDeque<Body>>,
}

#[derive(Debug)]
struct Body {
    burst: u64,
    due_ns: u64,
    place: *const [u8],
    /// The whole frame at the push.
    frame: Vec<u8>,
}

impl Device {
    pub(crate) fn new(fabric: FabricHandle, at: SimAddr, read_ns: u64) -> Self {
        let (burst, waits_at_flush, waits) = Default::default();
        Self { fabric, at, read_ns, burst, waits_at_flush, waits, unread: RefCell::default() }
    }

    pub(crate) fn waits(&self) -> u64 {
        self.waits.get()
    }

    pub(crate) fn wait_at_flush(&self) {
        self.waits_at_flush.set(true);
    }

    /// Takes a frame of the burst that ends, if the device reads the body in place.
    ///
    /// # Safety
    /// The body stays at its place until the device has read it, as [`RegionWatch`] says.
    #[expect(unsafe_code, reason = "the body is read where its owner has it")]
    pub(crate) unsafe fn take(&self, body: *const [u8], frame: &[u8]) {
        if body.len() >= READ_IN_PLACE_BYTES_MIN {
            let (burst, due_ns) = (self.burst.get() + 1, self.fabric.now_ns() + self.read_ns);
            let body = Body { burst, due_ns, place: body, frame: frame.to_vec() };
            self.unread.borrow_mut().push_back(body);
        }
    }

    /// Ends a burst.
    pub(crate) fn flush(&self) {
        self.burst.set(self.burst.get() + 1);
        if self.waits_at_flush.take() {
            self.await_reads();
        }
    }

    /// Reads the bodies that are due by a time.
    #[expect(unsafe_code, reason = "the addresses are what is to be checked")]
    pub(crate) fn read_until(&self, ns: u64) {
        let mut unread = self.unread.borrow_mut();
        while unread.front().is_some_and(|body| body.due_ns <= ns)
            && let Some(body) = unread.pop_front()
        {
            // SAFETY: by the contract of `take`.
            let bytes = unsafe { &*body.place };
            if !body.frame.ends_with(bytes) {
                changed(self.at, &body.frame);
            }
        }
    }
}

impl RegionWatch for Device {
    fn register(&self, _start: NonNull<u8>, _bytes: usize) -> bool {
        true
    }

    fn unregister(&self, _start: NonNull<u8>, _bytes: usize) {}

    fn unread(&self) -> Option<u64> {
        self.read_until(self.fabric.now_ns());
        (!self.unread.borrow().is_empty()).then_some(self.burst.get())
    }

    fn has_read(&self, burst: u64) -> bool {
        self.read_until(self.fabric.now_ns());
        self.unread.borrow().front().is_none_or(|body| body.burst > burst)
    }

    fn await_reads(&self) {
        self.waits.set(self.waits.get() + u64::from(self.unread().is_some()));
        self.read_until(u64::MAX);
    }
}
