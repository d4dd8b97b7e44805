//! Sessions, tokens and restarts (§3.5, §8.5): a single entry of the server's table serves session after session.
//!
//! Choices without a rule take the worst case: a restarted client keeps the address, and all sessions have an index and
//! a first request number in common, at the client and at the server. Tokens of different sessions differ.

use std::collections::BTreeSet;

use stateright::{Model, Property};

use super::{breaks, changed, holds};

/// A rule to leave out.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Without {
    Nothing,
    ServerToken,     // The server compares a frame's token with the session's own.
    ClientToken,     // The client compares a frame's token with the session's own.
    NewToken,        // Every session has a new token.
    OpenSession,     // A frame names an open session.
    DiscardedAnswer, // A response after the end of the session is discarded.
    EndOnBothSides,  // A session ends at the client and at the server.
}

struct Sessions {
    sessions: u8,
    without: Without,
}

/// Calls of a client in a session.
const CALLS: u8 = 2;

/// A request or response. No receiver can see `of`, the session of the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Frame {
    is_response: bool,
    token: u8,
    number: u8,
    of: u8,
}

/// The server's entry. `current` is the number of the last request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Entry {
    session: u8,
    is_open: bool,
    current: Option<u8>,
    is_answered: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct State {
    opened: u8,
    client: Option<(u8, u8)>, // The session, and the number of the call in the only slot.
    entry: Option<Entry>,
    frames: BTreeSet<Frame>,
    handlers: BTreeSet<(u8, u8)>, // Running, by session and number.
    is_confused: bool,            // A frame of another session was accepted.
    has_run_late: bool,           // A handler was called after the end of the session.
}

#[derive(Clone, Copy, Debug, PartialEq, Hash)]
enum Action {
    Open,
    Send,
    Abandon,
    ClientEnds, // By a restart, or by a SESSION_CLOSE in flight.
    ServerEnds,
    Learn, // The peer learns of the end.
    Deliver(Frame),
    Answer { session: u8, number: u8 },
}

impl State {
    fn at_server(&self) -> Option<u8> {
        self.entry.filter(|entry| entry.is_open).map(|entry| entry.session)
    }

    fn end_at_server(&mut self) {
        self.entry.iter_mut().for_each(|entry| entry.is_open = false);
    }
}

impl Sessions {
    fn token(&self, session: u8) -> u8 {
        if self.without == Without::NewToken { 0 } else { session }
    }

    fn apply(&self, state: &mut State, action: Action) {
        match action {
            Action::Open => {
                let session = state.opened;
                state.opened += 1;
                state.client = Some((session, 0));
                let is_open = true;
                state.entry = Some(Entry { session, is_open, current: None, is_answered: false });
            }
            Action::Send => {
                let Some((of, number)) = state.client else { return };
                let token = self.token(of);
                state.frames.insert(Frame { is_response: false, token, number, of });
            }
            Action::Abandon => state.client.iter_mut().for_each(|client| client.1 += 1),
            Action::ClientEnds => state.client = None,
            Action::ServerEnds => state.end_at_server(),
            Action::Learn if self.without == Without::EndOnBothSides => {}
            Action::Learn if state.client.is_none() => state.end_at_server(),
            Action::Learn => state.client = None,
            Action::Deliver(frame) if frame.is_response => self.on_response(state, frame),
            Action::Deliver(frame) => self.on_request(state, frame),
            Action::Answer { session, number } => self.answer(state, session, number),
        }
    }

    fn on_request(&self, state: &mut State, frame: Frame) {
        let Some(entry) = &mut state.entry else { return };
        let is_open = entry.is_open || self.without == Without::OpenSession;
        let is_own =
            frame.token == self.token(entry.session) || self.without == Without::ServerToken;
        if !is_open || !is_own || entry.current > Some(frame.number) {
            return;
        }
        state.is_confused |= frame.of != entry.session;
        if entry.current < Some(frame.number) {
            (entry.current, entry.is_answered) = (Some(frame.number), false);
            state.has_run_late |= frame.of != entry.session || !entry.is_open;
            state.handlers.insert((entry.session, frame.number));
        } else if entry.is_answered {
            let session = entry.session;
            self.respond(state, frame.number, session);
        }
    }

    /// Sends a response for the session `of` in the open session.
    fn respond(&self, state: &mut State, number: u8, of: u8) {
        let token = state.entry.map_or(0, |entry| self.token(entry.session));
        state.frames.insert(Frame { is_response: true, token, number, of });
    }

    fn answer(&self, state: &mut State, session: u8, number: u8) {
        state.handlers.remove(&(session, number));
        let Some(entry) = &mut state.entry else { return };
        let is_own = entry.session == session || self.without == Without::DiscardedAnswer;
        if entry.is_open && is_own && entry.current == Some(number) && !entry.is_answered {
            entry.is_answered = true;
            self.respond(state, number, session);
        }
    }

    fn on_response(&self, state: &mut State, frame: Frame) {
        let Some((session, number)) = &mut state.client else { return };
        let is_own = frame.token == self.token(*session) || self.without == Without::ClientToken;
        if is_own && *number == frame.number {
            state.is_confused |= frame.of != *session;
            *number += 1;
        }
    }

    fn is_one_sided(&self, state: &State) -> bool {
        state.client.map(|client| client.0) != state.at_server()
    }

    fn can_call(&self, state: &State) -> bool {
        let mut state = State { frames: BTreeSet::new(), ..state.clone() };
        if self.is_one_sided(&state) {
            self.apply(&mut state, Action::Learn);
        }
        if state.client.is_none() && state.at_server().is_none() {
            self.apply(&mut state, Action::Open);
        }
        let before = state.client;
        self.apply(&mut state, Action::Send);
        for _ in 0..2 {
            while let Some(frame) = state.frames.pop_first() {
                self.apply(&mut state, Action::Deliver(frame));
            }
            if let Some(Entry { session, current: Some(number), .. }) = state.entry {
                self.apply(&mut state, Action::Answer { session, number });
            }
        }
        state.client > before
    }
}

const UNCHANGED: &str = "no frame of a session changes another";
const NONE_LATE: &str = "no handler is called for a session that is over";
const CAN_CALL: &str = "a call can be made and answered";

impl Model for Sessions {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let is_free = state.client.is_none() && state.at_server().is_none();
        let has_call = state.client.is_some_and(|client| client.1 < CALLS);
        for (action, is_possible) in [
            (Action::Open, is_free && state.opened < self.sessions),
            (Action::Send, has_call),
            (Action::Abandon, has_call),
            (Action::ClientEnds, state.client.is_some()),
            (Action::ServerEnds, state.at_server().is_some()),
            (Action::Learn, self.is_one_sided(state)),
        ] {
            actions.extend(is_possible.then_some(action));
        }
        actions.extend(state.frames.iter().map(|frame| Action::Deliver(*frame)));
        let answer = |&(session, number): &(u8, u8)| Action::Answer { session, number };
        actions.extend(state.handlers.iter().map(answer));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        changed(last, |state| self.apply(state, action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(UNCHANGED, |_, state: &State| !state.is_confused),
            Property::always(NONE_LATE, |_, state: &State| !state.has_run_late),
            Property::always(CAN_CALL, |model: &Self, state: &State| model.can_call(state)),
            Property::sometimes("a handler outlives its session", |_, state: &State| {
                state.handlers.iter().any(|handler| state.at_server() > Some(handler.0))
            }),
            Property::sometimes(
                "a call of the last session ends",
                |model: &Self, state: &State| {
                    state
                        .frames
                        .iter()
                        .any(|frame| frame.is_response && frame.of + 1 == model.sessions)
                },
            ),
        ]
    }
}

#[test]
fn sessions_and_tokens() {
    holds(Sessions { sessions: 3, without: Without::Nothing }, 30_000);
}

#[test]
fn sessions_and_tokens__without_a_rule() {
    for (without, property) in [
        (Without::ServerToken, UNCHANGED),
        (Without::ServerToken, NONE_LATE),
        (Without::ClientToken, UNCHANGED),
        (Without::NewToken, UNCHANGED),
        (Without::NewToken, NONE_LATE),
        (Without::OpenSession, NONE_LATE),
        (Without::DiscardedAnswer, UNCHANGED),
        (Without::EndOnBothSides, CAN_CALL),
    ] {
        breaks(Sessions { sessions: 2, without }, property);
    }
}
