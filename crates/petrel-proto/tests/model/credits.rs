//! Credits and evidence of loss over two paths (§4, §14.4). A path keeps the order of packets and loses some. Between
//! the paths, and on the way back, any order is possible.

use std::collections::BTreeSet;

use stateright::{Model, Property};

use super::{breaks, changed, holds};

/// A rule to leave out.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Without {
    Nothing,
    Credits,        // A packet takes a credit.
    State,          // A CREDIT lists packets, and is no count of credits.
    Bitmap,         // A CREDIT acknowledges the packets of the bitmap alone.
    OneStays,       // A credit stays with the request until the response begins.
    FreeRepetition, // A repetition takes no credit.
    Timeout,        // A timeout repeats the lowest packet.
    Pull,           // A waiting client asks for the response.
    SameRequest,    // Evidence comes from the request of the packet.
    SamePath,       // Evidence comes from the path of the packet.
    SentOnce,       // Evidence comes from packets sent once.
}

/// A client with two requests of two packets: packets 0 and 1, 2 and 3.
struct Credits {
    without: Without,
}

const CREDITS: u32 = 2;
const PATHS: usize = 2;
const REPEATS_MAX: u8 = 1; // In the search.
const REQUESTS: [u8; 2] = [0b0011, 0b1100];

/// The last transmission of a packet, the `nth` on the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sent {
    path: usize,
    nth: u8,
    is_repeated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Reply {
    Credit { received: u8 },
    Response { request: u8 },
}

/// A set of packets has a bit for every packet. A request is a set of packets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct State {
    sent: [Option<Sent>; 4],
    acked: u8,
    surplus: u32, // Credits returned for no packet.
    ended: u8,
    received: u8,
    answered: u8,
    paths: [Vec<(usize, u8)>; PATHS], // In flight: a packet, and the place in the path's order.
    counts: [u8; PATHS],
    arrived: [u64; PATHS],
    repeats: u8,
    replies: BTreeSet<Reply>,
}

#[derive(Clone, Copy, Debug, PartialEq, Hash)]
enum Action {
    Send { packet: usize, path: usize }, // Perhaps once more.
    Arrive { path: usize, lost: usize }, // The packets before it, `lost`, never arrive.
    Deliver(Reply),
    Answer { request: u8 },
}

fn request_of(packet: usize) -> u8 {
    REQUESTS[packet / 2]
}

impl State {
    fn sent(&self) -> u8 {
        (0..4).filter(|packet| self.sent[*packet].is_some()).map(|packet| 1 << packet).sum()
    }

    fn unacked(&self) -> u8 {
        self.sent() & !self.acked & !self.ended
    }

    fn is_answerable(&self, request: u8) -> bool {
        request & !self.received == 0 && request & self.answered == 0
    }

    /// Packets and responses in flight, repetitions apart.
    fn in_flight(&self) -> u32 {
        let sent = self.paths.iter().flatten().fold(0, |all, (packet, _)| all | 1 << packet);
        let responses =
            REQUESTS.iter().filter(|request| self.answered & !self.ended & **request > 0);
        (sent & !self.received).count_ones() + responses.count() as u32
    }

    fn is_lost(&self, packet: usize) -> bool {
        self.sent[packet].is_some_and(|Sent { path, nth, .. }| {
            self.arrived[path] >> nth & 1 == 0 && !self.paths[path].contains(&(packet, nth))
        })
    }
}

impl Credits {
    fn has_credit(&self, state: &State) -> bool {
        let stays = |request: &u8| {
            request & !(state.acked & !state.ended) == 0 && self.without != Without::OneStays
        };
        let staying = REQUESTS.into_iter().filter(stays).count();
        let held = state.unacked().count_ones() + staying as u32;
        held < CREDITS + state.surplus || self.without == Without::Credits
    }

    /// Returns whether a later transmission shows the loss of a packet's last transmission.
    fn seems_lost(&self, state: &State, packet: usize) -> bool {
        let Some(last) = state.sent[packet] else { return false };
        (0..4).any(|other| {
            let is_same = request_of(other) == request_of(packet);
            let Some(sent) = state.sent[other].filter(|_| state.acked >> other & 1 == 1) else {
                return false;
            };
            sent.nth > last.nth
                && (is_same || self.without == Without::SameRequest)
                && (sent.path == last.path || self.without == Without::SamePath)
                && (!sent.is_repeated || self.without == Without::SentOnce)
        })
    }

    /// Returns the packets for the client to send: the next of a request, and repetitions.
    fn to_send(&self, state: &State) -> Vec<usize> {
        let is_unacked = |packet: &usize| state.unacked() >> packet & 1 == 1;
        let may_send = |packet: &usize| {
            let request = request_of(*packet);
            let first = packet & !1;
            if state.sent[*packet].is_none() {
                let is_next = *packet == first || state.sent[first].is_some();
                return is_next && state.ended & request == 0 && self.has_credit(state);
            }
            let is_lowest = *packet == first || !is_unacked(&first);
            is_unacked(packet)
                && (self.without != Without::FreeRepetition || self.has_credit(state))
                && (is_lowest && self.without != Without::Timeout
                    || self.seems_lost(state, *packet))
        };
        (0..4).filter(may_send).collect()
    }

    fn apply(&self, state: &mut State, action: Action) {
        match action {
            Action::Send { packet, path } => {
                let (nth, is_repeated) = (state.counts[path], state.sent[packet].is_some());
                state.counts[path] += 1;
                state.repeats += u8::from(is_repeated);
                state.paths[path].push((packet, nth));
                state.sent[packet] = Some(Sent { path, nth, is_repeated });
            }
            Action::Arrive { path, lost } => {
                let (packet, nth) = state.paths[path][lost];
                state.paths[path].drain(..=lost);
                state.arrived[path] |= 1 << nth;
                state.received |= 1 << packet;
                let request = request_of(packet);
                state.replies.insert(match request & state.answered {
                    0 => Reply::Credit { received: state.received & request },
                    _ => Reply::Response { request },
                });
            }
            Action::Deliver(Reply::Response { request }) => state.ended |= request,
            Action::Deliver(Reply::Credit { received }) => {
                if received & !state.acked == 0 && self.without == Without::State {
                    state.surplus = 1;
                }
                let request = REQUESTS[usize::from(received > 3)];
                let missing = if self.without == Without::Bitmap { request } else { 0 };
                state.acked |= (received | missing) & state.sent();
            }
            Action::Answer { request } => {
                state.answered |= request;
                state.replies.insert(Reply::Response { request });
            }
        }
    }

    fn can_end(&self, state: &State) -> bool {
        let mut state =
            State { replies: BTreeSet::new(), paths: Default::default(), ..state.clone() };
        for _ in 0..8 {
            for request in REQUESTS {
                if state.is_answerable(request) {
                    self.apply(&mut state, Action::Answer { request });
                } else if request & !(state.acked & state.answered) == 0
                    && self.without != Without::Pull
                {
                    state.replies.insert(Reply::Response { request });
                }
            }
            for packet in self.to_send(&state) {
                self.apply(&mut state, Action::Send { packet, path: 0 });
                self.apply(&mut state, Action::Arrive { path: 0, lost: 0 });
            }
            while let Some(reply) = state.replies.pop_first() {
                self.apply(&mut state, Action::Deliver(reply));
            }
        }
        state.ended == 0b1111
    }
}

const WITHIN_CREDITS: &str = "no more packets are in flight than there are credits";
const FOR_PACKETS: &str = "credits return for packets that have come, once each";
const TRUE_EVIDENCE: &str = "a packet that seems lost is lost";
const CAN_END: &str = "the requests end after a loss";

impl Model for Credits {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // The paths and the requests are alike before the first packet.
        let is_first = state.sent() == 0;
        for packet in self.to_send(state) {
            let may_send = state.sent[packet].is_none() || state.repeats < REPEATS_MAX;
            let paths = if is_first { usize::from(packet == 0) } else { PATHS };
            let sends = (0..paths).map(|path| Action::Send { packet, path });
            actions.extend(sends.filter(|_| may_send));
        }
        for (path, packets) in state.paths.iter().enumerate() {
            actions.extend((0..packets.len()).map(|lost| Action::Arrive { path, lost }));
        }
        actions.extend(state.replies.iter().map(|reply| Action::Deliver(*reply)));
        let answerable = REQUESTS.into_iter().filter(|request| state.is_answerable(*request));
        actions.extend(answerable.map(|request| Action::Answer { request }));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        changed(last, |state| self.apply(state, action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(WITHIN_CREDITS, |_, state: &State| state.in_flight() <= CREDITS),
            Property::always(FOR_PACKETS, |_, state: &State| {
                let returned = state.acked.count_ones() + state.surplus;
                state.acked & !state.received == 0 && returned <= state.received.count_ones()
            }),
            Property::always(TRUE_EVIDENCE, |model: &Self, state: &State| {
                let mut unacked = (0..4).filter(|packet| state.unacked() >> packet & 1 == 1);
                unacked.all(|packet| state.is_lost(packet) || !model.seems_lost(state, packet))
            }),
            Property::always(CAN_END, |model: &Self, state: &State| model.can_end(state)),
            Property::sometimes("all credits are in use", |_, state: &State| {
                state.in_flight() == CREDITS
            }),
            Property::sometimes("both requests end", |_, state: &State| state.ended == 0b1111),
            Property::sometimes("a packet seems lost", |model: &Self, state: &State| {
                (0..4).any(|packet| {
                    state.unacked() >> packet & 1 == 1 && model.seems_lost(state, packet)
                })
            }),
        ]
    }
}

#[test]
fn credits_of_two_paths() {
    holds(Credits { without: Without::Nothing }, 60_000);
}

#[test]
fn credits_of_two_paths__without_a_rule() {
    for (without, property) in [
        (Without::Credits, WITHIN_CREDITS),
        (Without::State, FOR_PACKETS),
        (Without::State, WITHIN_CREDITS),
        (Without::Bitmap, FOR_PACKETS),
        (Without::OneStays, WITHIN_CREDITS),
        (Without::FreeRepetition, CAN_END),
        (Without::Timeout, CAN_END),
        (Without::Pull, CAN_END),
        (Without::SameRequest, TRUE_EVIDENCE),
        (Without::SamePath, TRUE_EVIDENCE),
        (Without::SentOnce, TRUE_EVIDENCE),
    ] {
        breaks(Credits { without }, property);
    }
}
