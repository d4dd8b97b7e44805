//! The closed loop of peers whose calls are futures: as many tasks as calls in flight, on the calling
//! thread, with consecutive calls in every task.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use tokio::sync::oneshot;
use tokio::task::{LocalSet, spawn_local};

use crate::content::{self, BULK_BYTES, Bulk};
use crate::{Failure, Meter, Outcome, Plan, Workload};

/// Runs a server or client with all its tasks on the calling thread, because a process has a single CPU.
///
/// # Errors
/// The failure of the future.
pub fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, future)
}

/// The callers on one stream, in the order of their requests.
#[derive(Clone, Default)]
pub struct Callers(Rc<RefCell<VecDeque<oneshot::Sender<Bytes>>>>);

impl Callers {
    /// Adds the caller of the next request. The reply comes from the receiver; its end says that the stream has ended.
    pub fn add(&self) -> oneshot::Receiver<Bytes> {
        let (sender, receiver) = oneshot::channel();
        self.0.borrow_mut().push_back(sender);
        receiver
    }

    /// Passes a reply to its caller. Returns false if no caller waits.
    pub fn answer(&self, reply: Bytes) -> bool {
        let Some(caller) = self.0.borrow_mut().pop_front() else { return false };
        // A failed caller no longer waits.
        let _ = caller.send(reply);
        true
    }

    /// Ends all callers that are left with an error.
    pub fn end(&self) {
        self.0.borrow_mut().clear();
    }
}

/// Calls to the server.
pub trait Caller {
    /// The type of replies, which are compared as bytes.
    type Reply: AsRef<[u8]>;

    /// Makes an echo call; the reply is the request.
    fn echo(&self, request: Bytes) -> impl Future<Output = Result<Self::Reply, Failure>>;

    /// Makes a bulk call; the reply is a proof of the request, computed by [`Sink`](crate::Sink).
    fn bulk(&self, request: Bytes) -> impl Future<Output = Result<Self::Reply, Failure>>;
}

/// Runs a plan, with a clone of the caller for every call in flight. Only within [`block_on`].
///
/// # Errors
/// The failure of the first call that failed or had a wrong reply.
pub async fn run<C: Caller + Clone + 'static>(caller: C, plan: Plan) -> Result<Outcome, Failure> {
    let meter = Rc::new(RefCell::new(Meter::start(plan)));
    let lanes: Vec<_> = (0..plan.in_flight)
        .map(|_| spawn_local(lane(caller.clone(), meter.clone(), plan.workload)))
        .collect();
    for lane in lanes {
        lane.await??;
    }
    let meter = Rc::into_inner(meter).ok_or("a lane still holds the meter")?;
    Ok(meter.into_inner().finish()?)
}

async fn lane<C: Caller>(
    caller: C,
    meter: Rc<RefCell<Meter>>,
    workload: Workload,
) -> Result<(), Failure> {
    match workload {
        Workload::Echo => echoes(&caller, &meter).await,
        Workload::Bulk => bulks(&caller, &meter).await,
    }
}

async fn echoes<C: Caller>(caller: &C, meter: &RefCell<Meter>) -> Result<(), Failure> {
    while let Some(call) = begin(meter) {
        let reply = caller.echo(Bytes::copy_from_slice(&content::small(call))).await?;
        meter.borrow_mut().end(call, content::is_small(call, reply.as_ref()))?;
    }
    Ok(())
}

async fn bulks<C: Caller>(caller: &C, meter: &RefCell<Meter>) -> Result<(), Failure> {
    let mut memory = BytesMut::zeroed(BULK_BYTES);
    let mut bulk = Bulk::fill(&mut memory);
    while let Some(call) = begin(meter) {
        bulk.stamp(&mut memory, call);
        let request = memory.freeze();
        let reply = caller.bulk(request.clone()).await?;
        meter.borrow_mut().end(call, bulk.is_reply(reply.as_ref()))?;
        // Libraries that still hold the memory after the reply make the next call pay for a copy.
        memory = request.into();
    }
    Ok(())
}

fn begin(meter: &RefCell<Meter>) -> Option<u64> {
    meter.borrow_mut().begin()
}
