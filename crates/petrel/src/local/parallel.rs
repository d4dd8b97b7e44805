//! Many calls at once.

use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;

use super::call::Call;
use super::completions::Completions;
use super::hub::Hub;
use crate::error::Error;
use crate::msgbuf::MsgBuf;

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
    completions: Rc<Completions>,
    hub: Option<Rc<Hub>>,
}

impl Parallel {
    /// Runs at most `max_outstanding` calls at once; 0 counts as 1.
    pub fn new(max_outstanding: usize) -> Self {
        Self { max_outstanding: max_outstanding.max(1), completions: Rc::default(), hub: None }
    }

    /// Waits until fewer calls are outstanding than the limit.
    pub async fn has_room(&self) {
        let has_room = || self.outstanding() < self.max_outstanding;
        poll_fn(|cx| self.completions.poll_until(cx, has_room)).await;
    }

    /// Adds a call; also beyond the limit.
    pub fn push(&mut self, label: u64, call: Call) {
        self.hub.get_or_insert_with(|| Rc::clone(call.hub()));
        call.redirect(&self.completions, label);
    }

    /// Returns the next ended call, with its label; `None` when no call is outstanding.
    pub async fn next(&mut self) -> Option<(u64, Result<MsgBuf, Error>)> {
        let is_over = || self.outstanding() == 0 || self.completions.has_next();
        poll_fn(|cx| self.completions.poll_until(cx, is_over)).await;
        self.try_next()
    }

    /// Returns an ended call, if any. Does not wait.
    pub fn try_next(&mut self) -> Option<(u64, Result<MsgBuf, Error>)> {
        self.completions.take_next()
    }

    /// Lets the outstanding calls continue, without their outcomes.
    pub fn detach(self) {
        self.completions.take_outstanding();
    }

    /// Returns the number of outstanding calls.
    pub fn outstanding(&self) -> usize {
        self.completions.outstanding()
    }
}

impl Drop for Parallel {
    fn drop(&mut self) {
        let keys = self.completions.take_outstanding();
        if let Some(hub) = &self.hub {
            keys.into_iter().for_each(|key| hub.abandon(key));
        }
    }
}

impl fmt::Debug for Parallel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parallel({} of {})", self.outstanding(), self.max_outstanding)
    }
}
