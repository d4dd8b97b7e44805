//! The handlers of an endpoint, by method: the code that runs for a request.

use std::any::Any;
use std::rc::Rc;

use petrel_proto::buffer::Placed;
use petrel_proto::{RequestHandle, SessionId, Status};
use petrel_transport::SharedBytes;

use super::authorize::{Grants, Guarded, refuse_ungranted};
use super::burst::{Batch, Gathered, Locators};
use super::context::Context;
use super::description::{DESCRIBE, ServiceDescription};
use super::handle::Handle;
use super::health::{HEALTH_METHOD, Health, Healths, INVALID_HEALTH_REQUEST, is_echo};
use super::in_place::{InPlace, InPlaceRequest};
use super::late_answers::LateAnswers;
use super::request::{Handled, Payload, Request};
use crate::events;
use crate::msgbuf::MsgBuf;
use crate::panics::catch;
use crate::values::State;
use crate::values::method_table::{ServiceTable, TypedServices};

const STATE_IS_HERE: &str = "the endpoint has its state when no task runs";

/// Size of a small response, reserved when memory is short: a handler must not run without memory to answer. It fits
/// into one packet, and the buffer stays in the slot for the next response.
const ROOM_BYTES: usize = petrel_proto::limits::PACKET_BYTES_MIN as usize;

/// Returns memory of the application for a request that begins to arrive, by its length, and the payload of its first
/// packet, if that has arrived.
type Placer = Box<dyn FnMut(State<'_>, usize, Option<&[u8]>) -> Option<Placed>>;

/// The handler of a method with an envelope: it sees the number of the method itself.
pub(super) struct Enveloped {
    pub(super) own: u16,
    pub(super) handler: Box<dyn Handle>,
}

impl Handle for Enveloped {
    fn handle(&mut self, state: State<'_>, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        self.handler.handle(state, cx, request.of_method(self.own))
    }
}

/// The handlers by method, and their shared state.
pub(super) struct Handlers {
    state: Box<dyn Any>,
    by_method: Vec<Option<Box<dyn Handle>>>,
    locators: Locators,
    /// Methods whose requests arrive in memory of the application: few.
    placers: Vec<(u16, Placer)>,
    /// Handlers that read in place.
    in_place: InPlace,
    /// Handlers of the library itself, apart from the application's methods: few.
    own: Vec<(u16, Box<dyn Handle>)>,
    /// Methods whose handlers stay.
    taken: Vec<u16>,
    /// Whether a method is batched: few endpoints have any, and bursts of the others skip `gathered`.
    is_batched: bool,
    gathered: Gathered,
    healths: Healths,
    /// The answer to requests for the service's description.
    description: Vec<u8>,
    typed: TypedServices,
    /// The methods with an envelope, each with the method itself.
    enveloped: Vec<(u16, u16)>,
    /// The methods that clients may call, if some may not call all.
    grants: Option<Rc<Grants>>,
}

impl Handlers {
    /// Returns the state, to be lent to a handler or continuation.
    #[inline(always)]
    pub(super) fn state(&mut self) -> State<'_> {
        State::of(&mut *self.state)
    }

    /// Returns the state in its box, to be lent to tasks.
    pub(super) fn state_box(&mut self) -> &mut Box<dyn Any> {
        &mut self.state
    }

    /// Returns the state by its type.
    pub(super) fn state_ref<S: 'static>(&self) -> &S {
        self.state.downcast_ref().expect(STATE_IS_HERE)
    }

    /// Returns the state by its type, to change it.
    pub(super) fn state_mut<S: 'static>(&mut self) -> &mut S {
        self.state.downcast_mut().expect(STATE_IS_HERE)
    }

    /// Takes the state by its type, at the endpoint's end.
    pub(super) fn take_state<S: 'static>(&mut self) -> S {
        *std::mem::replace(&mut self.state, Box::new(())).downcast().expect(STATE_IS_HERE)
    }

    pub(super) fn healths(&mut self) -> &mut Healths {
        &mut self.healths
    }

    /// Returns true if the handler of a method reads requests in place.
    #[inline]
    pub(super) fn reads_in_place(&self, method: Option<u16>) -> bool {
        // Reading in place passes the guard by.
        self.in_place.is_wanted(method) && !self.is_limited()
    }

    pub(super) fn new(state: Box<dyn Any>, service: &ServiceDescription) -> Self {
        Self {
            state,
            by_method: Vec::new(),
            locators: Locators::default(),
            placers: Vec::new(),
            in_place: InPlace::default(),
            own: Vec::new(),
            taken: Vec::new(),
            is_batched: false,
            gathered: Gathered::default(),
            healths: Healths::default(),
            description: service.to_bytes(),
            typed: TypedServices::default(),
            enveloped: Vec::new(),
            grants: None,
        }
    }

    pub(super) fn set(&mut self, method: u16, handler: Box<dyn Handle>) {
        assert_ne!(method, HEALTH_METHOD, "the endpoint answers requests for its health itself");
        assert!(!self.taken.contains(&method), "method {method} keeps its handler");
        let is_placed = self.placers.iter().any(|(other, _)| *other == method);
        assert!(!is_placed, "the handler of method {method} stays: requests arrive in its memory");
        let index = usize::from(method);
        if self.by_method.len() <= index {
            self.by_method.resize_with(index + 1, || None);
        }
        self.by_method[index] = Some(match &self.grants {
            Some(grants) => Box::new(Guarded::new(handler, grants, self.granted_as(method))),
            None => handler,
        });
        self.in_place.forget(method);
    }

    pub(super) fn has_handler(&self, method: u16) -> bool {
        matches!(self.by_method.get(usize::from(method)), Some(Some(_)))
    }

    pub(super) fn has_own(&self, method: u16) -> bool {
        self.own.iter().any(|(other, _)| *other == method)
    }

    /// Sets a handler of the library, which checks its requests itself.
    pub(super) fn set_own(&mut self, method: u16, handler: Box<dyn Handle>) {
        assert!(
            !self.has_own(method) && !self.has_handler(method),
            "method {method} has a handler"
        );
        self.own.push((method, handler));
    }

    /// Returns the method whose grant lets a client call this one: a method has the same grant with and without an envelope.
    fn granted_as(&self, method: u16) -> u16 {
        let own = self.enveloped.iter().find(|(enveloped, _)| *enveloped == method);
        own.map_or(method, |(_, own)| *own)
    }

    /// Adds a typed service with two handlers of each method: without and with an envelope. Returns the methods' numbers.
    pub(super) fn add_service(
        &mut self,
        table: &'static ServiceTable,
        handlers: Vec<(Box<dyn Handle>, Box<dyn Handle>)>,
    ) -> Vec<u16> {
        assert_eq!(table.methods.len(), handlers.len(), "each method has its handlers");
        let mut numbers = self.add_table(table);
        let enveloped = numbers.split_off(handlers.len());
        for ((own, enveloped), handlers) in numbers.iter().zip(enveloped).zip(handlers) {
            self.enveloped.push((enveloped, *own));
            self.take(*own, handlers.0);
            self.take(enveloped, Box::new(Enveloped { own: *own, handler: handlers.1 }));
        }
        numbers
    }

    /// Adds the table of a typed service, and returns the numbers of its methods.
    fn add_table(&mut self, table: &'static ServiceTable) -> Vec<u16> {
        let is_taken = |number: u16| number == HEALTH_METHOD || self.has_handler(number);
        for method in table.methods {
            let is_free = method.id.is_none_or(|id| !is_taken(id));
            assert!(is_free, "the id of {}/{} has a handler already", table.name, method.name);
        }
        let numbers = table.numbers(is_taken);
        self.typed.add(table, &numbers);
        numbers
    }

    #[cfg(test)]
    pub(super) fn hide_envelopes(&mut self) {
        self.typed.hide_envelopes();
    }

    /// Lets only granted requests reach the handlers, those set before and those set later.
    pub(super) fn guard(&mut self, grants: &Rc<Grants>) {
        if self.grants.replace(Rc::clone(grants)).is_none() {
            for method in 0..self.by_method.len() {
                let granted = self.granted_as(method as u16);
                let guard = |handler| Box::new(Guarded::new(handler, grants, granted)) as _;
                let handler = self.by_method[method].take();
                self.by_method[method] = handler.map(guard);
            }
        }
    }

    /// Returns true if some clients may not call all methods.
    fn is_limited(&self) -> bool {
        self.grants.as_ref().is_some_and(|grants| !grants.are_unlimited())
    }

    /// Sets a handler that stays.
    pub(super) fn take(&mut self, method: u16, handler: Box<dyn Handle>) {
        assert!(!self.has_handler(method), "method {method} has a handler already");
        self.set(method, handler);
        self.keep(method);
    }

    /// Keeps the handler of a method from being replaced.
    pub(super) fn keep(&mut self, method: u16) {
        assert!(self.has_handler(method), "a handler is kept after it was set");
        self.taken.push(method);
    }

    /// Lets large requests of a method arrive in memory that `placer` returns. The method's handler, which was set before,
    /// takes the memory from [`Local`](super::context::Local).
    pub(super) fn set_placer(&mut self, method: u16, placer: Placer) {
        assert!(self.has_handler(method), "the handler of method {method} knows of the memory");
        self.placers.push((method, placer));
    }

    /// Returns memory of the application for a request of several packets that begins to arrive.
    pub(super) fn destination(
        &mut self,
        method: u16,
        len: usize,
        first: Option<&[u8]>,
    ) -> Option<Placed> {
        // Packets of a client that may not call the method must not get into the application's memory.
        if self.is_limited() {
            return None;
        }
        let (_, placer) = self.placers.iter_mut().find(|(other, _)| *other == method)?;
        placer(State::of(&mut *self.state), len, first)
    }

    /// Returns the functions that fetch memory for handlers ahead.
    #[inline(always)]
    pub(super) fn locators(&mut self) -> &mut Locators {
        &mut self.locators
    }

    /// Fetches further memory for the handlers of shown requests.
    #[inline(always)]
    pub(super) fn fetch_further(&mut self) {
        self.locators.step(State::of(&mut *self.state));
    }

    /// Answers a request of a method without a handler.
    #[cold]
    #[inline(never)]
    fn answer_other(
        &mut self,
        cx: &mut Context<'_>,
        handle: RequestHandle,
        method: u16,
        (payload, spare): (Payload<'_>, Option<MsgBuf>),
    ) {
        let left = self.run_confined(cx, &handle, method, (payload, spare));
        let Some((payload, spare)) = left else { return };
        if let Some((_, handler)) = self.own.iter_mut().find(|(other, _)| *other == method) {
            let request = Request::new(&handle, method, payload, spare);
            let state = State::of(&mut *self.state);
            return match catch(|| handler.handle(state, cx, request)) {
                Ok(handled) => {
                    let answer = handled.into_message();
                    answer.into_iter().for_each(|message| cx.respond_at_once(handle, message));
                }
                Err(payload) => cx.end_panicked(handle, payload),
            };
        }
        if method == HEALTH_METHOD {
            if payload.data() == DESCRIBE {
                return answer_own(cx, handle, &self.description);
            }
            if let Some(answer) = self.typed.answer(payload.data()) {
                return answer_own(cx, handle, answer);
            }
            if is_echo(payload.data()) {
                return answer_own(cx, handle, payload.data());
            }
            let has_handler = |method| self.has_handler(method);
            return answer_health(cx, handle, self.healths.answer(payload.data(), has_handler));
        }
        let text = "the server has no such method";
        events::request_refused(handle.session, Status::Unimplemented, text);
        cx.local.core.refuse(handle, Status::Unimplemented, text);
    }

    /// Runs the handler of a request of a session that is confined to the callbacks of a client. Returns the message of other sessions.
    fn run_confined<'a>(
        &mut self,
        cx: &mut Context<'_>,
        handle: &'a RequestHandle,
        method: u16,
        (payload, spare): (Payload<'a>, Option<MsgBuf>),
    ) -> Option<(Payload<'a>, Option<MsgBuf>)> {
        let Some(grants) = self.grants.as_ref().filter(|grants| !grants.confined().is_empty())
        else {
            return Some((payload, spare));
        };
        let request = Request::new(handle, method, payload, spare);
        let state = State::of(&mut *self.state);
        let ran = catch(|| match method == HEALTH_METHOD || grants.allow(handle.session, method) {
            true => grants.confined().run(state, cx, request),
            false => Ok(refuse_ungranted(cx, request)),
        });
        match ran {
            Ok(Ok(handled)) => {
                if let Some(message) = handled.into_message() {
                    cx.respond_at_once(*handle, message);
                }
                None
            }
            Ok(Err((_, request))) => Some(request.into_payload()),
            Err(panic) => {
                cx.end_panicked(*handle, panic);
                None
            }
        }
    }

    /// Runs the handler of a request, and sends the response, if the handler returns one.
    #[inline(always)]
    pub(super) fn run(
        &mut self,
        cx: &mut Context<'_>,
        handle: RequestHandle,
        method: u16,
        payload: Payload<'_>,
        spare: Option<MsgBuf>,
    ) {
        let Some(Some(handler)) = self.by_method.get_mut(usize::from(method)) else {
            return self.answer_other(cx, handle, method, (payload, spare));
        };
        if spare.is_none() && !cx.local.pool.has_room_for_small() {
            return self.run_in_last_room(cx, handle, method, payload);
        }
        let request = Request::new(&handle, method, payload, spare);
        let state = State::of(&mut *self.state);
        let handled = match catch(|| handler.handle(state, cx, request)) {
            Ok(handled) => handled,
            Err(payload) => return cx.end_panicked(handle, payload),
        };
        if let Some(message) = handled.into_message() {
            // The fields are copied one by one: the compiler would copy a whole handle from memory to memory.
            let RequestHandle { session, number } = handle;
            let session = SessionId { index: session.index, generation: session.generation };
            cx.respond_at_once(RequestHandle { session, number }, message);
        }
    }

    /// Runs a handler when memory is short, if a small response can be allocated; refuses the request if not. Packets that have had an
    /// effect already, as those of a large WRITE, leave the request's outcome unknown: the error is then no refusal (§15.2).
    #[cold]
    #[inline(never)]
    fn run_in_last_room(
        &mut self,
        cx: &mut Context<'_>,
        handle: RequestHandle,
        method: u16,
        payload: Payload<'_>,
    ) {
        let Ok(room) = cx.alloc(ROOM_BYTES) else {
            let text = "the server has no memory for an answer";
            match cx.local.has_effect() {
                true => cx.local.core.respond_error(handle, Status::ResourceExhausted, text),
                false => cx.local.core.refuse(handle, Status::ResourceExhausted, text),
            }
            return;
        };
        self.run(cx, handle, method, payload, Some(room));
    }

    /// Sets the handler of a method: in place for requests of one frame over shared memory, and by `set` for all
    /// others.
    pub(super) fn set_in_place(
        &mut self,
        method: u16,
        handler: impl FnMut(State<'_>, &mut Context<'_>, InPlaceRequest<'_>) -> Handled + 'static,
    ) {
        let mut in_place = std::mem::take(&mut self.in_place);
        let private = in_place.set(method, handler);
        self.set(method, Box::new(private));
        self.in_place = in_place;
    }

    /// Sets the handler of a method that gets the requests of a burst together.
    pub(super) fn set_batched(
        &mut self,
        method: u16,
        late: Rc<LateAnswers>,
        handler: impl FnMut(State<'_>, &mut Context<'_>, &Batch<'_>) + 'static,
    ) {
        let handler = self.gathered.handler(method, late, handler);
        self.is_batched = true;
        self.set(method, handler);
    }

    /// Returns true if the current burst has brought requests to batched methods.
    #[inline(always)]
    pub(super) fn has_gathered(&self) -> bool {
        self.is_batched && !self.gathered.is_empty()
    }

    /// Returns the batches of the current burst.
    #[inline(always)]
    pub(super) fn gathered(&self) -> &Gathered {
        &self.gathered
    }

    /// Runs the handler of a request with the message in shared memory, and sends the response, if the handler returns
    /// one.
    pub(super) fn run_in_place(
        &mut self,
        cx: &mut Context<'_>,
        handle: RequestHandle,
        method: u16,
        message: SharedBytes<'_>,
        spare: Option<MsgBuf>,
    ) {
        let handler = self.in_place.get(method).expect("the method's handler reads in place");
        let request = InPlaceRequest::shared(&handle, method, message, spare);
        let state = State::of(&mut *self.state);
        match catch(|| (handler.borrow_mut())(state, cx, request)).map(Handled::into_message) {
            Ok(Some(message)) => cx.respond_at_once(handle, message),
            Ok(None) => {}
            Err(payload) => cx.end_panicked(handle, payload),
        }
    }
}

/// Answers a request of [`HEALTH_METHOD`] with these bytes.
fn answer_own(cx: &mut Context<'_>, handle: RequestHandle, answer: &[u8]) {
    match cx.alloc_message(answer) {
        Ok(message) => cx.respond(handle, Status::Ok, message),
        Err(_) => cx.respond_error(handle, Status::ResourceExhausted, "no memory"),
    }
}

/// Answers a request for health.
fn answer_health(cx: &mut Context<'_>, handle: RequestHandle, health: Option<Health>) {
    match health {
        Some(health) => answer_own(cx, handle, &[health as u8]),
        None => {
            cx.respond_error(handle, Status::InvalidArgument, INVALID_HEALTH_REQUEST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_in_place__methods_whose_latest_handler_does() {
        let mut handlers = Handlers::new(Box::new(()), &ServiceDescription::default());
        let wanted = |handlers: &Handlers| {
            (0..8).filter(|&method| handlers.reads_in_place(Some(method))).collect::<Vec<_>>()
        };
        assert!(wanted(&handlers).is_empty());
        let answer = |_: State<'_>, _: &mut Context<'_>, _: InPlaceRequest<'_>| Handled::later();
        for method in [5, 2, 5] {
            handlers.set_in_place(method, answer);
        }
        assert_eq!(wanted(&handlers), [2, 5]);
        assert!(!handlers.reads_in_place(None), "no request");
        let copied = |_: State<'_>, _: &mut Context<'_>, _: Request<'_>| Handled::later();
        handlers.set(5, Box::new(copied));
        handlers.set(3, Box::new(copied));
        handlers.in_place.forget(u16::MAX);
        assert_eq!(wanted(&handlers), [2]);
    }

    #[test]
    fn take__of_a_method_with_a_handler_or_before_another_handler() {
        let answer = |_: State<'_>, _: &mut Context<'_>, _: Request<'_>| Handled::later();
        let panics = |run: &dyn Fn(&mut Handlers)| {
            let mut handlers = Handlers::new(Box::new(()), &ServiceDescription::default());
            handlers.take(65_520, Box::new(answer));
            let run = std::panic::AssertUnwindSafe(|| run(&mut handlers));
            std::panic::catch_unwind(run).is_err()
        };
        assert!(panics(&|handlers| handlers.take(65_520, Box::new(answer))));
        assert!(panics(&|handlers| handlers.set(65_520, Box::new(answer))));
        let in_place = |_: State<'_>, _: &mut Context<'_>, _: InPlaceRequest<'_>| Handled::later();
        assert!(panics(&|handlers| handlers.set_in_place(65_520, in_place)));
        let after = |handlers: &mut Handlers| {
            handlers.set(3, Box::new(answer));
            handlers.set(3, Box::new(answer));
            handlers.take(3, Box::new(answer));
        };
        assert!(panics(&after));
        assert!(!panics(&|handlers| handlers.take(65_521, Box::new(answer))));
    }

    panics! {
        set_in_place__of_the_health_method: "answers requests for its health itself" => {
        let answer = |_: State<'_>, _: &mut Context<'_>, _: InPlaceRequest<'_>| Handled::later();
            Handlers::new(Box::new(()), &ServiceDescription::default())
                .set_in_place(HEALTH_METHOD, answer);
        };
    }
}
