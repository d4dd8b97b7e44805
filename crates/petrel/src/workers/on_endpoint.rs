//! Requests that an endpoint's handlers pass to workers.

use petrel_transport::Transport;

use super::queue::Queue;
use super::{WorkerRequest, Workers};
use crate::control::ControlPlane;
use crate::endpoint::{Callbacks, Context, Detached, Endpoint, Handled, Request};

impl<S: 'static, T: Transport, C: ControlPlane<T::Link>> Endpoint<S, T, C> {
    /// Sets a handler that runs on a worker pool, replacing a former one: for handlers that wait or take longer than
    /// some microseconds.
    ///
    /// When the pool's queue is full the request is answered with RESOURCE_EXHAUSTED at once.
    pub fn on_worker(
        &mut self,
        method: u16,
        workers: &Workers,
        handler: impl Fn(WorkerRequest) + Send + Sync + 'static,
    ) {
        let prepare = |_: &mut S, _: &Request<'_>| ();
        self.on_worker_with(method, workers, prepare, move |(), request| handler(request));
    }

    /// Sets a handler like [`Endpoint::on_worker`], with a part of the state. `prepare` runs on the endpoint's thread, and returns the part
    /// for the worker: a copy, or an `Arc`.
    ///
    /// ```
    /// # use petrel::Server;
    /// # use petrel::workers::Workers;
    /// # use std::sync::Arc;
    /// let workers = Workers::builder().threads(2).start()?;
    /// let server = Server::bind("127.0.0.1:0").serve(
    ///     |_| Arc::new(vec![3_u64, 4, 5]),
    ///     move |endpoint| {
    ///         let prepare = |table: &mut Arc<Vec<u64>>, _: &petrel::Request<'_>| Arc::clone(table);
    ///         endpoint.on_worker_with(7, &workers, prepare, |table, request| {
    ///             let sum: u64 = table.iter().sum();
    ///             request.reply(&sum.to_le_bytes());
    ///         });
    ///     },
    /// );
    /// # let server = server.start()?;
    /// # let client = petrel::Client::connect_wait(server.local_addr())?;
    /// # assert_eq!(client.call(7, "").wait()?, 12_u64.to_le_bytes());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_worker_with<P: Send + 'static>(
        &mut self,
        method: u16,
        workers: &Workers,
        mut prepare: impl FnMut(&mut S, &Request<'_>) -> P + 'static,
        handler: impl Fn(P, WorkerRequest) + Send + Sync + 'static,
    ) {
        let handler = std::sync::Arc::new(handler);
        let queue = workers.queue();
        self.on(method, move |state, cx, request| {
            let part = prepare(state, &request);
            let handler = std::sync::Arc::clone(&handler);
            pass_on(&queue, cx.untyped(), request, move |request| handler(part, request))
        });
    }
}

impl Callbacks {
    /// Sets a handler that runs on a worker pool: see [`Endpoint::on_worker`].
    ///
    /// # Panics
    /// As [`Callbacks::on`].
    pub fn on_worker(
        &mut self,
        method: u16,
        workers: &Workers,
        handler: impl Fn(WorkerRequest) + Send + Sync + 'static,
    ) {
        let handler = std::sync::Arc::new(handler);
        let queue = workers.queue();
        self.on(method, move |cx, request| {
            let handler = std::sync::Arc::clone(&handler);
            pass_on(&queue, cx, request, move |request| handler(request))
        });
    }
}

/// Has a worker run a handler.
pub(crate) fn pass_on(
    queue: &Queue,
    cx: &mut Context<'_>,
    request: Request<'_>,
    handler: impl FnOnce(WorkerRequest) + Send + 'static,
) -> Handled {
    let (request, handled) = request.detach(cx);
    match queue.push(cx.now().as_ns(), Box::new(handler), request) {
        Ok(()) => cx.note_woken(),
        Err(refused) => {
            let (handle, reason) = refused.into_parts();
            cx.refuse_detached(handle, reason.status(), reason.text());
        }
    }
    handled
}

impl Request<'_> {
    /// Copies the request, for any thread or task to answer.
    ///
    /// Only the sessions' slots limit the number of detached requests: a handler should use a bounded channel, or a
    /// semaphore. For threads of a pool there is [`Endpoint::on_worker`](crate::Endpoint::on_worker).
    pub fn detach<S: 'static>(self, cx: &mut Context<'_, S>) -> (WorkerRequest, Handled) {
        let (detached, handled) = self.into_detached(cx);
        let Detached { handle, method, deadline, data, cancelled, sender, peer } = detached;
        let request = WorkerRequest::new(handle, method, deadline, data, cancelled, sender);
        (request.with_peer(peer), handled)
    }
}
