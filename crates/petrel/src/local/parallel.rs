//! Many calls at once.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::calls::{Call, Outcome};
use super::hub::Hub;
use super::slab::Key;
use crate::error::Error;
use crate::msgbuf::MsgBuf;

/// Collects the outcomes of many calls, in the order of their ends: calls that have not ended are not polled.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    ended: RefCell<VecDeque<(u64, Outcome)>>,
    waker: RefCell<Option<Waker>>,
    /// The outstanding calls, for cancellation; in an order that a simulation can repeat.
    keys: RefCell<BTreeSet<Key>>,
}

impl Gathering {
    pub(super) fn expect(&self, key: Key) {
        self.keys.borrow_mut().insert(key);
    }

    pub(super) fn put(&self, key: Key, label: u64, outcome: Outcome) {
        self.keys.borrow_mut().remove(&key);
        self.ended.borrow_mut().push_back((label, outcome));
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

/// Runs many calls, with a limit of simultaneous ones. A label identifies the outcome of a call: calls end in any
/// order.
///
/// ```
/// # use petrel::endpoint::EndpointConfig;
/// # use petrel::task::Parallel;
/// # use petrel::Nexus;
/// # let server = Nexus::builder().listen("127.0.0.1:0".parse()?).start()?;
/// # let address = server.local_addr().expect("it listens");
/// # std::thread::spawn(move || {
/// #     let mut endpoint = server.endpoint(EndpointConfig::default()).expect("an endpoint");
/// #     endpoint.on(1, |_, cx, request| { let data = request.data().to_vec(); request.reply(cx, &data) });
/// #     endpoint.run_until(|_, _| false);
/// # });
/// # let mut endpoint = Nexus::builder().start()?.endpoint(EndpointConfig::default())?;
/// # let handle = endpoint.handle();
/// # endpoint.block_on(async move {
/// let session = handle.connect(address).await?;
/// let mut calls = Parallel::new(16);
/// for number in 0..1000u64 {
///     calls.has_room().await;
///     calls.push(number, session.call(1, &number.to_le_bytes()).started());
/// }
/// while let Some((number, answer)) = calls.next().await {
///     assert_eq!(&answer?[..], &number.to_le_bytes());
/// }
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Dropping it cancels the outstanding calls.
pub struct Parallel {
    max_outstanding: usize,
    gathering: Rc<Gathering>,
    hub: Option<Rc<Hub>>,
}

impl Parallel {
    /// Runs at most `max_outstanding` calls at once; 0 counts as 1.
    pub fn new(max_outstanding: usize) -> Self {
        Self { max_outstanding: max_outstanding.max(1), gathering: Rc::default(), hub: None }
    }

    /// Waits until fewer calls are outstanding than the limit.
    pub async fn has_room(&self) {
        poll_fn(|cx| self.poll_until(cx, || self.on_the_way() < self.max_outstanding)).await;
    }

    /// Adds a call; also beyond the limit.
    pub fn push(&mut self, label: u64, call: Call) {
        self.hub.get_or_insert_with(|| Rc::clone(call.hub()));
        call.redirect(&self.gathering, label);
    }

    /// Returns the next ended call, with its label; `None` when no call is outstanding.
    pub async fn next(&mut self) -> Option<(u64, Result<MsgBuf, Error>)> {
        let is_over = || self.on_the_way() == 0 || !self.gathering.ended.borrow().is_empty();
        poll_fn(|cx| self.poll_until(cx, is_over)).await;
        self.try_next()
    }

    /// Returns an ended call, if any. Does not wait.
    pub fn try_next(&mut self) -> Option<(u64, Result<MsgBuf, Error>)> {
        self.gathering.ended.borrow_mut().pop_front()
    }

    /// Lets the outstanding calls continue, without their outcomes.
    pub fn detach(self) {
        self.gathering.keys.borrow_mut().clear();
    }

    /// Returns the number of outstanding calls.
    pub fn on_the_way(&self) -> usize {
        self.gathering.keys.borrow().len()
    }

    fn poll_until(&self, cx: &mut std::task::Context<'_>, is_over: impl Fn() -> bool) -> Poll<()> {
        if is_over() {
            return Poll::Ready(());
        }
        *self.gathering.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Parallel {
    fn drop(&mut self) {
        let keys = std::mem::take(&mut *self.gathering.keys.borrow_mut());
        if let Some(hub) = &self.hub {
            keys.into_iter().for_each(|key| hub.abandon(key));
        }
    }
}

impl fmt::Debug for Parallel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parallel({} of {})", self.on_the_way(), self.max_outstanding)
    }
}
