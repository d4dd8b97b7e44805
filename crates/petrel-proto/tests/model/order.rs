//! Ordered calls (§14.6) in the slots of §5.1 and §6.1. All calls synchronise.

use std::collections::BTreeSet;

use stateright::{Model, Property};

use super::{breaks, changed, holds};

/// A rule to leave out.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Without {
    Nothing,
    Waiting,        // A complete request waits for the earlier calls.
    Answered,       // A call has run with the answer, and not with the handler's start.
    LateRequest,    // A request that arrives below `ended` never runs.
    OpenRequest,    // A part of a request, or a waiting request, never runs below `ended`.
    OvertakenEnded, // A lower `ended` than before is ignored.
    PresentEnded,   // Frames of a waiting call carry the present `ended`.
    Current,        // A slot's `current` never goes back.
}

/// A client with two slots, and with the number of packets of each call's request.
struct Ordered {
    packets: [u8; CALLS],
    without: Without,
}

const CALLS: usize = 3;
const SLOTS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Frame {
    Request { call: u8, ended: u8 },
    Part { call: u8 }, // The second packet, without extension 6.
    Pull { call: u8, ended: u8 },
    Cancel { call: u8 },
    Credit { call: u8 },
    Response { call: u8 },
}

/// A call at the client. The sequence is the place in the list of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Call {
    slot: usize,
    phase: Phase,
    is_sent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Sending,
    Waiting,
    Ended,
}

/// A slot at the server. `call` stands for the request number: call and number rise together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Slot {
    call: Option<u8>,
    state: SlotState,
    has_first: bool,
    has_second: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum SlotState {
    Arriving,
    Complete,
    Running,
    Answered,
    #[default]
    GivenUp, // IDLE, or ANSWERED by a CANCEL.
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct State {
    calls: Vec<Call>,
    slots: [Slot; SLOTS],
    ended: u8,     // At the server.
    ran: u8,       // A bit for every call known to have run.
    runs: Vec<u8>, // The calls of handlers, in order.
    frames: BTreeSet<Frame>,
}

#[derive(Clone, Copy, Debug, PartialEq, Hash)]
enum Action {
    Begin { slot: usize },
    Send { call: u8 }, // All packets of the request, or a PULL.
    Abandon { call: u8 },
    Deliver(Frame),
    Answer { slot: usize },
}

impl State {
    fn free_slots(&self) -> impl Iterator<Item = usize> {
        let is_used = |slot, call: &Call| call.slot == slot && call.phase != Phase::Ended;
        (0..SLOTS).filter(move |slot| !self.calls.iter().any(|call| is_used(*slot, call)))
    }

    fn running(&self) -> Vec<usize> {
        (0..SLOTS).filter(|slot| self.slots[*slot].state == SlotState::Running).collect()
    }

    fn open_calls(&self) -> Vec<u8> {
        let is_open = |call: &u8| self.call(*call).phase != Phase::Ended;
        (0..self.calls.len() as u8).filter(is_open).collect()
    }

    fn call(&self, call: u8) -> Call {
        self.calls[usize::from(call)]
    }

    fn phase(&mut self, call: u8) -> &mut Phase {
        &mut self.calls[usize::from(call)].phase
    }

    /// Notes that a CANCEL or the slot's next request ends the request in a slot.
    fn leave(&mut self, slot: usize) {
        if let Slot { call: Some(call), has_first: true, .. } = self.slots[slot] {
            self.ran |= 1 << call;
        }
    }

    /// Replies to a frame of a complete request.
    fn reply(&mut self, call: u8) {
        let slot = self.slots[self.call(call).slot];
        match slot.state {
            SlotState::Complete | SlotState::Running if slot.call == Some(call) => {
                self.frames.insert(Frame::Credit { call });
            }
            SlotState::Answered if slot.call == Some(call) => {
                self.frames.insert(Frame::Response { call });
            }
            _ => {}
        }
    }

    /// Returns whether the server may still call the handler of a call.
    fn can_run(&self, call: u8) -> bool {
        let (slot, is_late) = (self.slots[self.call(call).slot], call < self.ended);
        match slot.state {
            _ if slot.call > Some(call) => false,
            _ if slot.call < Some(call) => !is_late,
            SlotState::Arriving => slot.has_first || !is_late,
            state => state == SlotState::Complete,
        }
    }

    /// Returns whether the server has answered a call, or the client has abandoned the call.
    fn is_over(&self, call: u8) -> bool {
        let Call { slot, phase, .. } = self.call(call);
        let slot = self.slots[slot];
        phase == Phase::Ended || (slot.call, slot.state) == (Some(call), SlotState::Answered)
    }
}

impl Ordered {
    fn apply(&self, state: &mut State, action: Action) {
        match action {
            Action::Begin { slot } => {
                state.calls.push(Call { slot, phase: Phase::Sending, is_sent: false });
            }
            Action::Send { call } => self.send(state, call),
            Action::Abandon { call } => {
                *state.phase(call) = Phase::Ended;
                if state.call(call).is_sent {
                    state.frames.insert(Frame::Cancel { call });
                }
            }
            Action::Deliver(frame) => self.deliver(state, frame),
            Action::Answer { slot } => {
                state.slots[slot].state = SlotState::Answered;
                state.leave(slot);
                state.reply(state.slots[slot].call.expect("a request runs"));
            }
        }
        self.settle(state);
    }

    fn send(&self, state: &mut State, call: u8) {
        let is_told = self.without != Without::PresentEnded;
        let ended = state.open_calls().first().copied().filter(|_| is_told).unwrap_or(0);
        if state.call(call).phase == Phase::Waiting {
            state.frames.insert(Frame::Pull { call, ended });
            return;
        }
        state.calls[usize::from(call)].is_sent = true;
        state.frames.insert(Frame::Request { call, ended });
        if self.packets[usize::from(call)] == 2 {
            state.frames.insert(Frame::Part { call });
        }
    }

    fn deliver(&self, state: &mut State, frame: Frame) {
        match frame {
            Frame::Request { call, ended } => {
                self.note_ended(state, ended);
                self.on_packet(state, call, true);
            }
            Frame::Part { call } => self.on_packet(state, call, false),
            Frame::Pull { call, ended } => {
                self.note_ended(state, ended);
                state.reply(call);
            }
            Frame::Cancel { call } => {
                let index = state.call(call).slot;
                let slot = state.slots[index];
                let is_late = (slot.call, slot.state) == (Some(call), SlotState::Answered);
                if slot.call <= Some(call) && !is_late {
                    state.leave(index);
                    let given_up = SlotState::GivenUp;
                    state.slots[index] = Slot { call: Some(call), state: given_up, ..slot };
                }
            }
            Frame::Credit { call } => {
                if *state.phase(call) == Phase::Sending {
                    *state.phase(call) = Phase::Waiting;
                }
            }
            Frame::Response { call } => *state.phase(call) = Phase::Ended,
        }
    }

    fn note_ended(&self, state: &mut State, ended: u8) {
        if ended > state.ended || self.without == Without::OvertakenEnded {
            state.ended = ended;
        }
        for slot in &mut state.slots {
            let is_open = matches!(slot.state, SlotState::Arriving | SlotState::Complete);
            let is_late = slot.has_first && slot.call < Some(state.ended);
            if is_open && is_late && self.without != Without::OpenRequest {
                slot.state = SlotState::GivenUp;
            }
        }
    }

    fn on_packet(&self, state: &mut State, call: u8, is_first: bool) {
        let index = state.call(call).slot;
        if state.slots[index].call > Some(call) && self.without != Without::Current {
            return;
        }
        if state.slots[index].call != Some(call) {
            state.leave(index);
            let has_second = self.packets[usize::from(call)] == 1;
            let arriving = SlotState::Arriving;
            let call = Some(call);
            state.slots[index] = Slot { call, state: arriving, has_first: false, has_second };
        }
        let is_late = call < state.ended && self.without != Without::LateRequest;
        let slot = &mut state.slots[index];
        if slot.state != SlotState::Arriving {
            return state.reply(call);
        }
        if is_first && !slot.has_first && is_late {
            slot.state = SlotState::GivenUp;
            return;
        }
        slot.has_first |= is_first;
        slot.has_second |= !is_first;
        if slot.has_first && slot.has_second {
            slot.state = SlotState::Complete;
            state.reply(call);
        }
    }

    /// Calls the handlers of complete requests without an earlier call to wait for.
    fn settle(&self, state: &mut State) {
        for index in 0..SLOTS {
            let Slot { call: Some(call), state: SlotState::Complete, .. } = state.slots[index]
            else {
                continue;
            };
            let has_run = |earlier| earlier < state.ended || state.ran >> earlier & 1 == 1;
            if (0..call).all(has_run) || self.without == Without::Waiting {
                state.slots[index].state = SlotState::Running;
                state.runs.push(call);
                if self.without == Without::Answered {
                    state.ran |= 1 << call;
                }
            }
        }
    }

    fn can_end(&self, state: &State) -> bool {
        let mut state = State { frames: BTreeSet::new(), ..state.clone() };
        for _ in 0..4 * CALLS {
            let free = state.free_slots().next();
            if let Some(slot) = free.filter(|_| state.calls.len() < CALLS) {
                self.apply(&mut state, Action::Begin { slot });
            }
            for call in state.open_calls() {
                self.send(&mut state, call);
            }
            while let Some(frame) = state.frames.pop_first() {
                self.apply(&mut state, Action::Deliver(frame));
            }
            for slot in state.running() {
                self.apply(&mut state, Action::Answer { slot });
            }
        }
        state.calls.len() == CALLS && state.open_calls().is_empty()
    }
}

const IN_ORDER: &str = "handlers are called in the order of the calls, once for each";
const NONE_LATER: &str = "no call before one that has run can run";
const AFTER_ANSWER: &str = "a call runs when those before have been answered or abandoned";
const CAN_END: &str = "every call can end";

impl Model for Ordered {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.calls.len() < CALLS {
            // The slots are alike before the first call.
            let choices = if state.calls.is_empty() { 1 } else { SLOTS };
            actions.extend(state.free_slots().take(choices).map(|slot| Action::Begin { slot }));
        }
        let ways = |call| [Action::Send { call }, Action::Abandon { call }];
        actions.extend(state.open_calls().into_iter().flat_map(ways));
        actions.extend(state.frames.iter().map(|frame| Action::Deliver(*frame)));
        actions.extend(state.running().into_iter().map(|slot| Action::Answer { slot }));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        changed(last, |state| self.apply(state, action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(IN_ORDER, |_, state: &State| state.runs.is_sorted_by(|a, b| a < b)),
            Property::always(NONE_LATER, |_, state: &State| {
                let last = state.runs.last().copied().unwrap_or(0);
                (0..last).all(|call| !state.can_run(call))
            }),
            Property::always(AFTER_ANSWER, |_, state: &State| {
                let last = state.runs.last().copied().unwrap_or(0);
                (0..last).all(|call| state.is_over(call))
            }),
            Property::always(CAN_END, |model: &Self, state: &State| model.can_end(state)),
            Property::sometimes("all calls run", |_, state: &State| state.runs.len() == CALLS),
            Property::sometimes("a call runs behind one that never does", |_, state: &State| {
                state.runs == [0, 2]
            }),
        ]
    }
}

#[test]
fn ordered_calls() {
    holds(Ordered { packets: [1, 2, 1], without: Without::Nothing }, 80_000);
}

#[test]
fn ordered_calls__without_a_rule() {
    for (without, property) in [
        (Without::Waiting, IN_ORDER),
        (Without::Waiting, NONE_LATER),
        (Without::Answered, AFTER_ANSWER),
        (Without::LateRequest, IN_ORDER),
        (Without::OpenRequest, IN_ORDER),
        (Without::OvertakenEnded, IN_ORDER),
        (Without::PresentEnded, CAN_END),
        (Without::Current, IN_ORDER),
    ] {
        breaks(Ordered { packets: [1, 1, 1], without }, property);
        breaks(Ordered { packets: [1, 2, 1], without }, property);
    }
}
