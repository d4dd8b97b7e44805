//! The part of an event loop's turn for the futures of its thread.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use petrel_proto::limits::TRANSMIT_FRAMES_MAX;
use petrel_proto::{PendingCall, SessionId};
use petrel_transport::Transport;

use super::Endpoint;
use super::call::{Continuation, Reply};
use super::context::{Context, Local, NotTaken};
use super::event_loop::Sink;
use super::service::{run_due, run_ended};
use super::state::State;
use crate::client::InLoop;
use crate::control::{ControlPlane, EndpointId};
use crate::error::Error;
use crate::local::{Command, ConnectAnswer, Handle, MainWaker, Session, Start};

/// Most rounds of polling tasks in a turn: tasks that wake each other leave time for frames.
const ROUNDS_MAX: u32 = 8;

impl<S: 'static, T: Transport, C: ControlPlane<T::Link>> Endpoint<S, T, C> {
    /// Returns a handle of the endpoint for futures: to connect, spawn and sleep. It may be used at any time on the
    /// endpoint's thread; operations take place while the event loop runs.
    pub fn handle(&self) -> Handle<S> {
        Handle::new(Rc::clone(&self.local.hub))
    }

    /// Returns a handle of a session for futures.
    pub fn session(&self, id: SessionId) -> Session {
        let watched = self.local.hub.watch(id, || self.session_state(id));
        Session::new(Rc::clone(&self.local.hub), watched)
    }

    /// Runs the event loop, with all its work, until a future is ready. No other executor is needed.
    pub fn block_on<F: Future>(&mut self, future: F) -> F::Output {
        let _running = InLoop::enter();
        let mut future = pin!(future);
        let main = Arc::new(MainWaker::new(self.local.hub.ready()));
        let waker = Arc::clone(&main).into();
        self.local.now_ns = self.transport.now();
        self.local.hub.begin(self.local.now_ns);
        loop {
            if main.take() {
                let hub = Rc::clone(&self.local.hub);
                let poll = || future.as_mut().poll(&mut TaskContext::from_waker(&waker));
                let (state, local) = (&mut self.handlers.state, &mut self.local);
                if let Poll::Ready(output) = hub.lend(state, local, poll) {
                    return output;
                }
            }
            self.turn();
        }
    }

    /// Polls tasks, and carries out the orders of tasks, other threads and handlers.
    #[inline(never)]
    pub(super) fn run_local(&mut self, now_ns: u64) {
        let hub = Rc::clone(&self.local.hub);
        hub.begin(now_ns);
        for _ in 0..ROUNDS_MAX {
            self.work_flag.clear();
            self.handle_posts();
            self.answer_dropped();
            self.run_late_watchers();
            run_due(&mut Context::new(&mut self.local));
            run_ended(self.handlers.state(), &mut Context::new(&mut self.local));
            hub.lend(&mut self.handlers.state, &mut self.local, || hub.poll_tasks());
            self.do_as_asked();
            if !self.work_flag.is_raised() {
                break;
            }
        }
        hub.end(self.local.services.next_due_ns());
        self.close_drained(now_ns);
    }

    fn do_as_asked(&mut self) {
        let hub = Rc::clone(&self.local.hub);
        while let Some(start) = hub.next_start() {
            self.local.make_call(start);
        }
        while let Some(answer) = hub.next_answer() {
            answer.give(self.context().untyped());
        }
        while let Some((session, key)) = hub.next_cancel() {
            self.cancel_call(session, key);
        }
        while let Some(command) = hub.next_command() {
            match command {
                Command::Connect(_, _, answer) if answer.is_given_up() => {}
                Command::Connect(remote, endpoint, answer) => {
                    self.connect_for(remote, endpoint, &answer);
                }
                Command::Close(id) => self.close(id),
            }
        }
    }

    /// Sends only the pending CANCELs.
    pub(super) fn send_last(&mut self) {
        let hub = Rc::clone(&self.local.hub);
        while let Some((session, key)) = hub.next_cancel() {
            self.cancel_call(session, key);
        }
        loop {
            let sent = self.local.core.transmit_cancels(&mut Sink::new(&mut self.transport));
            self.transport.flush();
            if sent < TRANSMIT_FRAMES_MAX {
                break;
            }
        }
    }

    /// No caller wants the outcome.
    fn cancel_call(&mut self, session: SessionId, key: u64) {
        let _ended = self.local.cancel_fn(session, complete, key);
    }

    fn connect_for(
        &mut self,
        remote: std::net::SocketAddr,
        endpoint: EndpointId,
        answer: &ConnectAnswer,
    ) {
        let opened = self.connect_to(remote, endpoint);
        answer.put(opened.map(|id| self.local.hub.watch(id, || self.session_state(id))));
    }
}

impl Local {
    /// Makes a call of a future.
    #[inline(always)]
    pub(crate) fn make_call(&mut self, start: Start) {
        let Start { key, session, method, request, response, deadline_ns } = start;
        let is_plain = deadline_ns.is_none() && !request.is_reference();
        let tag = Continuation::function(complete, key);
        let call = PendingCall { method, tag, request, response };
        let mut cx = Context::<()>::new(self);
        let started = match is_plain {
            true => cx.start(session, call),
            false => cx.start_with(session, call, None, deadline_ns),
        };
        match started {
            Ok(()) => {}
            Err(rejected) => self.refuse_call(key, session, rejected),
        }
    }

    #[cold]
    fn refuse_call(&mut self, key: u64, session: SessionId, rejected: NotTaken) {
        let error = rejected.error;
        let text = self.sessions.explain(session, &error);
        self.hub.finish(key, Err(Error::not_sent(error.status(), text)));
    }
}

/// The continuation of all calls that are futures.
fn complete(_state: State<'_>, cx: &mut Context<'_>, reply: Reply, key: u64) {
    cx.local.hub.finish_awaited(key, reply.into_response());
}
