//! The methods that an endpoint serves.

use std::future::Future;
use std::ptr;
use std::rc::Rc;

use petrel_proto::SessionId;
use petrel_proto::buffer::{Destination, Placed};
use petrel_transport::Transport;

use super::burst::Batch;
use super::context::Context;
use super::health::Health;
use super::in_place::InPlaceRequest;
use super::request::{Handled, Request};
use super::serve::{Copied, OwnRequest, Serving};
use super::{Endpoint, handle};
use crate::control::{ControlPlane, EndpointId};
use crate::error::Error;
use crate::local::Handle;
use crate::panics::Closure;
use crate::region_memory::View;
use crate::sync::Arc;
use crate::values::State;
use crate::values::method_table::ServiceTable;

impl<S: 'static, T: Transport, C: ControlPlane<T::Link>> Endpoint<S, T, C> {
    /// Sets the handler of a method, replacing a former one. The handler runs in the event loop, and should take
    /// microseconds at most. A handler that needs longer, or the results of other calls, takes a
    /// [`Responder`](super::Responder) and answers later.
    ///
    /// # Panics
    /// When the endpoint answers the method itself: [`HEALTH_METHOD`](super::HEALTH_METHOD), and the methods of
    /// [regions](Endpoint::serve_regions); and when its requests [arrive in memory](Endpoint::receive_into) of its handler.
    pub fn on(
        &mut self,
        method: u16,
        mut handler: impl FnMut(&mut S, &mut Context<'_, S>, Request<'_>) -> Handled + 'static,
    ) {
        let handler = move |state: State<'_>, cx: &mut Context<'_>, request: Request<'_>| {
            // SAFETY: this handler belongs to an endpoint with this type of state.
            handler(unsafe { state.get::<S>() }, cx.typed(), request)
        };
        self.set_handler(method, handler);
    }

    /// Sets the handler of a method whose large requests are put together in memory that the application names, replacing a former handler:
    /// the packets of a request are copied once, to their place. A server that keeps its requests, such as a log, needs no further copy.
    ///
    /// When a request of several packets begins to arrive, `destination` gets its length, and returns a [`Destination`]; or
    /// `None`, for a buffer of the endpoint. The handler gets the destination of the whole request, whose
    /// [`Request::data`] is then empty. Requests of one packet, and those without a destination, are as for
    /// [`Endpoint::on`]. A request that never becomes whole, because its client cancels it or disappears, ends with a
    /// drop of its destination, and the handler is not called.
    ///
    /// `destination` may be called twice for a request, if the server's memory for messages is short; the first result is
    /// dropped. After a panic of `destination` the request arrives in a buffer. [`Destination::held_bytes`] are charged to the client, by the rules for all half-arrived requests.
    ///
    /// ```
    /// # use petrel::endpoint::EndpointConfig;
    /// # use petrel::Nexus;
    /// # let nexus = Nexus::builder().listen("127.0.0.1:0".parse()?).start()?;
    /// # let mut endpoint = nexus.endpoint_with(EndpointConfig::default(), Vec::<Vec<u8>>::new())?;
    /// endpoint.receive_into(
    ///     7,
    ///     |_entries, len| Some(vec![0; len]),
    ///     |entries, cx, request, entry| {
    ///         // A small request was not placed.
    ///         entries.push(entry.unwrap_or_else(|| request.data().to_vec()));
    ///         request.reply(cx, b"")
    ///     },
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// As [`Endpoint::on`].
    pub fn receive_into<D: Destination>(
        &mut self,
        method: u16,
        mut destination: impl FnMut(&mut S, usize) -> Option<D> + 'static,
        mut handler: impl FnMut(&mut S, &mut Context<'_, S>, Request<'_>, Option<D>) -> Handled
        + 'static,
    ) {
        let run = move |state: State<'_>, cx: &mut Context<'_>, request: Request<'_>| {
            let placed = cx.take_placed();
            // SAFETY: this handler belongs to an endpoint with this type of state.
            handler(unsafe { state.get::<S>() }, cx.typed(), request, placed)
        };
        self.set_handler(method, run);
        let panics = Rc::clone(self.local.panics());
        let place = move |state: State<'_>, len: usize, _: Option<&[u8]>| {
            // SAFETY: this closure belongs to an endpoint with this type of state.
            let state = unsafe { state.get::<S>() };
            let placed = panics.contain(Closure::Handler, || destination(state, len));
            placed.flatten().map(Placed::new)
        };
        self.handlers.set_placer(method, Box::new(place));
    }

    /// Lets large requests of a [taken](Endpoint::take_method) method arrive in other memory.
    pub(crate) fn place_method<D: Destination>(
        &mut self,
        method: u16,
        mut destination: impl FnMut(usize, &[u8]) -> Option<D> + 'static,
    ) {
        let place = move |_: State<'_>, len: usize, first: Option<&[u8]>| {
            destination(len, first?).map(Placed::new)
        };
        self.handlers.set_placer(method, Box::new(place));
    }

    /// Lets the counters of the regions that this endpoint serves be seen with its own.
    pub(crate) fn show_regions(&mut self, view: Arc<View>) {
        self.local.regions = Some(view);
    }

    /// Has a function told of each session that ends.
    pub(crate) fn on_session_end(&mut self, tell: impl Fn(SessionId) + 'static) {
        self.local.on_session_end(tell);
    }

    /// Returns true if a method has a handler.
    pub(crate) fn has_handler(&self, method: u16) -> bool {
        self.handlers.has_handler(method)
    }

    /// Keeps the handler of a method from being replaced.
    pub(crate) fn keep_method(&mut self, method: u16) {
        self.handlers.keep(method);
    }

    /// Adds a typed service with the handlers of its methods, each for calls without and with an envelope. Returns the methods' numbers.
    pub(crate) fn add_service(
        &mut self,
        table: &'static ServiceTable,
        handlers: Vec<(Box<dyn handle::Handle>, Box<dyn handle::Handle>)>,
    ) -> Vec<u16> {
        self.handlers.add_service(table, handlers)
    }

    /// Sets the handler of a method of the library that every client may call, apart from the application's methods.
    pub(crate) fn set_own_handler(&mut self, method: u16, handler: Box<dyn handle::Handle>) {
        self.handlers.set_own(method, handler);
    }

    pub(crate) fn has_own_handler(&self, method: u16) -> bool {
        self.handlers.has_own(method)
    }

    /// Returns the endpoint's number within its process.
    pub(crate) fn id(&self) -> EndpointId {
        self.control.endpoint_id()
    }

    /// Makes the endpoint name its methods as a version without envelopes does.
    #[cfg(test)]
    pub(crate) fn hide_envelopes(&mut self) {
        self.handlers.hide_envelopes();
    }

    /// Sets the only handler of a method that the library answers.
    ///
    /// # Panics
    /// When the method has a handler.
    pub(crate) fn take_method(&mut self, method: u16, handler: impl handle::Handle + 'static) {
        self.handlers.take(method, Box::new(handler));
    }

    /// Sets a handler that does not use the state.
    pub(crate) fn set_handler(
        &mut self,
        method: u16,
        handler: impl FnMut(State<'_>, &mut Context<'_>, Request<'_>) -> Handled + 'static,
    ) {
        self.handlers.set(method, Box::new(handler));
    }

    /// Sets the handler of a method that reads requests in place. Reading in place pays for large requests over shared memory with large
    /// frames (`host.shm.max_frame_bytes`), which [`Endpoint::on`] copies for the handler. The client can write to the handler's memory, as
    /// the type says.
    ///
    /// # Panics
    /// When the method is [`HEALTH_METHOD`](super::HEALTH_METHOD), which the endpoint answers itself.
    pub fn on_in_place(
        &mut self,
        method: u16,
        mut handler: impl FnMut(&mut S, &mut Context<'_, S>, InPlaceRequest<'_>) -> Handled + 'static,
    ) {
        let handler = move |state: State<'_>, cx: &mut Context<'_>, request: InPlaceRequest<'_>| {
            // SAFETY: this handler belongs to an endpoint with this type of state.
            handler(unsafe { state.get::<S>() }, cx.typed(), request)
        };
        self.handlers.set_in_place(method, handler);
    }

    /// Sets a handler that gets requests in batches, replacing a former one: all requests of the method that one receive burst
    /// brought, and none of a later burst, so that no request waits for others. For handlers whose time goes to memory
    /// accesses that can overlap, as by the crate `petrel-batch`: see
    /// [docs/batched.md](https://github.com/petrel-rpc/petrel/blob/main/docs/batched.md).
    ///
    /// The handler answers each request of the [`Batch`] by its number; the responses are sent together when it returns.
    /// Messages of more than 1 KiB come in a batch of their own. Requests that are cancelled, or whose deadline passes, before
    /// the batch runs do not get into it. If the handler panics, the responses so far are sent by the next turn, and the
    /// other requests of the batch fail with INTERNAL.
    ///
    /// ```
    /// # use petrel::endpoint::EndpointConfig;
    /// # use petrel::Nexus;
    /// # let nexus = Nexus::builder().listen("127.0.0.1:0".parse()?).start()?;
    /// # let mut endpoint = nexus.endpoint_with(EndpointConfig::default(), vec![5_u64, 7, 11])?;
    /// endpoint.on_batch(7, |primes: &mut Vec<u64>, cx, batch| {
    ///     for (index, message) in batch.messages().enumerate() {
    ///         let place = usize::from(message[0]);
    ///         batch.reply(cx, index, &primes[place].to_le_bytes());
    ///     }
    /// });
    /// # let session = endpoint.connect(nexus.local_addr().expect("it listens"))?;
    /// # assert_eq!(endpoint.call(session, 7, [1]).wait()?[..], 7_u64.to_le_bytes());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// As [`Endpoint::on`].
    pub fn on_batch(
        &mut self,
        method: u16,
        mut handler: impl FnMut(&mut S, &mut Context<'_, S>, &Batch<'_>) + 'static,
    ) {
        let handler = move |state: State<'_>, cx: &mut Context<'_>, batch: &Batch<'_>| {
            // SAFETY: this handler belongs to an endpoint with this type of state.
            handler(unsafe { state.get::<S>() }, cx.typed(), batch);
        };
        let late = Rc::clone(self.local.late_answers());
        self.handlers.set_batched(method, late, handler);
    }

    /// Prefetches the memory that the handler of a method will read first, while other requests are served. For
    /// handlers that look up an entry in a table larger than the caches. Otherwise every request waits for a cache
    /// line; here the lines of a burst arrive together.
    ///
    /// `locate` gets a small request's message before the handler runs, mostly for a whole burst, and returns the
    /// address that the handler will access. A cache line there is fetched. The function has to be quick, and to accept
    /// any bytes: the message comes from the network unchecked, and the handler may never run. The address is not read
    /// from, and may be any, null for none.
    ///
    /// Gain and cost: PERFORMANCE.md, section "The ordered index".
    pub fn prefetch(&mut self, method: u16, locate: impl Fn(&[u8]) -> *const u8 + 'static) {
        let panics = Rc::clone(self.local.panics());
        let locate = move |message: &[u8]| {
            let address = panics.contain(Closure::Handler, || locate(message));
            (address.unwrap_or(ptr::null()), 0)
        };
        self.handlers.locators().set(method, Box::new(locate), None);
    }

    /// [`Endpoint::prefetch`] of memory that is found in two steps, as an item by an entry of an index: `locate` returns
    /// the address of the entry, and a word for the second step, such as the key's hash. `then` gets the state and the
    /// word some requests later, when the entry is in the cache, looks into the entry, and calls
    /// [`prefetch`](super::prefetch) for the lines of the item. It has to be quick too, and must not rely on the
    /// handler: the request may be refused, and the entry may change before the handler runs.
    ///
    /// ```
    /// # use petrel::endpoint::{EndpointConfig, prefetch};
    /// # use petrel::Nexus;
    /// # let nexus = Nexus::builder().listen("127.0.0.1:0".parse()?).start()?;
    /// # let mut endpoint = nexus.endpoint_with(EndpointConfig::default(), vec![Box::new(5_u64), Box::new(7)])?;
    /// let place = |message: &[u8]| usize::from(message.first().copied().unwrap_or(0));
    /// let entries = endpoint.state_mut().as_ptr();
    /// endpoint.prefetch_then(
    ///     7,
    ///     move |message| (entries.wrapping_add(place(message)).cast(), place(message) as u64),
    ///     |primes: &mut Vec<Box<u64>>, place| {
    ///         if let Some(prime) = primes.get(place as usize) {
    ///             prefetch(std::ptr::from_ref(&**prime).cast());
    ///         }
    ///     },
    /// );
    /// endpoint.on(7, move |primes, cx, request| {
    ///     let prime = *primes[place(request.data())];
    ///     request.reply(cx, &prime.to_le_bytes())
    /// });
    /// # let session = endpoint.connect(nexus.local_addr().expect("it listens"))?;
    /// # assert_eq!(endpoint.call(session, 7, [1]).wait()?[..], 7_u64.to_le_bytes());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prefetch_then(
        &mut self,
        method: u16,
        locate: impl Fn(&[u8]) -> (*const u8, u64) + 'static,
        then: impl Fn(&mut S, u64) + 'static,
    ) {
        let panics = Rc::clone(self.local.panics());
        let of_then = Rc::clone(&panics);
        let locate = move |message: &[u8]| {
            panics.contain(Closure::Handler, || locate(message)).unwrap_or((ptr::null(), 0))
        };
        let then = move |state: State<'_>, word| {
            // SAFETY: this locator belongs to an endpoint with this type of state.
            let state = unsafe { state.get::<S>() };
            of_then.contain(Closure::Handler, || then(state, word)).unwrap_or(());
        };
        self.handlers.locators().set(method, Box::new(locate), Some(Box::new(then)));
    }

    /// Sets a future as the handler of a method: it may make calls, wait for them and for time, while the event loop
    /// continues. The future runs on the endpoint's thread, as a task per request, which costs some allocations.
    ///
    /// When the caller gives up, or the deadline passes, the future is dropped at its current state, which cancels the
    /// awaited calls. Calls of the future inherit the request's deadline. The caller gets the handler's error: `?`
    /// passes the error of a call on.
    ///
    /// ```
    /// # use petrel::endpoint::EndpointConfig;
    /// # use petrel::Nexus;
    /// let mut endpoint = Nexus::builder().start()?.endpoint_with(EndpointConfig::default(), 0)?;
    /// endpoint.on_async(7, |handle, request| async move {
    ///     handle.with(|requests: &mut u64| *requests += 1);
    ///     handle.sleep(std::time::Duration::from_millis(1)).await;
    ///     Ok(request.data().to_ascii_uppercase())
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// As [`Endpoint::on`].
    pub fn on_async<F, A>(
        &mut self,
        method: u16,
        mut handler: impl FnMut(Handle<S>, OwnRequest) -> F + 'static,
    ) where
        F: Future<Output = Result<A, Error>> + 'static,
        A: AsRef<[u8]>,
    {
        let serving = Serving::<_, _, Copied>::new(self.handle());
        self.on(method, move |_, cx, request| serving.begin(cx, request, &mut handler));
    }

    /// Sets whether the endpoint can serve: by default always, except while draining.
    pub fn set_health(&mut self, health: Health) {
        self.handlers.healths().set_endpoint(health);
    }

    /// Sets whether a method can be served: by default if there is a handler.
    pub fn set_method_health(&mut self, method: u16, health: Health) {
        self.handlers.healths().set_method(method, health);
    }
}
