//! A client with consecutive operations. As the protocol requires, the client repeats an operation until a result
//! arrives.

use petrel_kv::api::{
    Applied, Consistency, GetReply, GetRequest, Outcome, ScanReply, ScanRequest, WriteReply,
    methods,
};
use petrel_kv::command::Command;

use crate::connection::{AfterRefusal, Connection};
use crate::history::{Found, Invocation, Response};
use crate::operation::Change;
use crate::script::Known;
use crate::value::{key_of, number_of, tag_of};

pub(crate) struct Client {
    connection: Connection,
    number: u32,
    /// The session, and the number of the last write.
    session: u64,
    sequence: u64,
    /// Writes that the client may still abandon.
    abandons_left: u64,
    known: Known,
}

/// The outcome of an operation.
enum Answer {
    Response(Response),
    /// The client has abandoned the operation.
    Abandoned,
    /// A rule was broken.
    Wrong,
}

impl Client {
    pub(crate) fn new(connection: Connection, number: u32) -> Self {
        let abandons_left = connection.common.scenario.load.abandon_max;
        Self { connection, number, session: 0, sequence: 0, abandons_left, known: Known::default() }
    }

    /// All operations during the fault window.
    pub(crate) async fn run(mut self) {
        let load = self.connection.common.scenario.load;
        if self.open().await.is_some() {
            let rounds = if self.connection.common.scenario.reads_stale_leaders() { 3 } else { 1 };
            for _ in 0..rounds * load.ops {
                let invocation = self.draw();
                if self.perform(invocation).await.is_none() {
                    break;
                }
                // Stale readers pause less, to read while an inconsistency would be visible.
                let is_stale_reader = self.connection.common.scenario.reads_stale_leaders();
                self.connection
                    .pause(load.pause_ns_max >> if is_stale_reader { 2 } else { 0 })
                    .await;
            }
        }
        self.finish();
    }

    /// Reads every key, for the final check.
    pub(crate) async fn read_all(mut self) {
        for key in 0..self.connection.common.scenario.load.keys {
            if self.perform(Invocation::Get { key }).await.is_none() {
                break;
            }
        }
        self.finish();
    }

    fn finish(&self) {
        let busy = &self.connection.common.clients_busy;
        busy.set(busy.get() - 1);
    }

    async fn open(&mut self) -> Option<()> {
        let command = Command::OpenSession.to_vec();
        let applied = self.write(&command, false).await.ok()??;
        if applied.outcome != Outcome::SessionOpened {
            self.fail(format!("a session was asked for, and {applied:?} came"));
            return None;
        }
        self.session = applied.index;
        Some(())
    }

    fn draw(&mut self) -> Invocation {
        let load = self.connection.common.scenario.load;
        let rng = &mut self.connection.rng;
        let key = rng.below(u64::from(load.keys)) as u8;
        let kind = rng.below(10);
        if load.has_scans && kind == 9 {
            let from = rng.below(u64::from(load.keys)) as u8;
            let until = rng.between(u64::from(from), u64::from(load.keys)) as u8;
            return Invocation::Scan { from, until, max: rng.between(1, 6) as u32 };
        }
        let padding = rng.below(load.value_bytes_max + 1);
        // The tag's write has the next number.
        let tag = format!("{}.{}.{padding}", self.number, self.sequence + 1);
        match kind {
            0..4 => Invocation::Put { key, tag },
            4 => Invocation::Delete { key },
            5 => Invocation::Cas { key, expected: self.known.draw_expected(rng, key), tag },
            6 => Invocation::CasDelete { key, expected: self.known.draw_expected(rng, key) },
            _ => Invocation::Get { key },
        }
    }

    /// Performs an operation, and records call and end in the history.
    async fn perform(&mut self, invocation: Invocation) -> Option<()> {
        let common = self.connection.common.clone();
        self.connection.begin();
        let id = common.history.borrow_mut().begin(self.number, invocation.clone());
        common.fabric.note(format_args!("CLIENT {} #{id} invokes {invocation:?}", self.number));
        let answer = match &invocation {
            Invocation::Get { key } => self.get(*key).await,
            Invocation::Scan { from, until, max } => self.scan(*from, *until, *max).await,
            _ => self.change(&invocation).await,
        };
        let response = match answer {
            Answer::Response(response) => response,
            Answer::Abandoned => {
                common.fabric.note(format_args!("CLIENT {} #{id} abandons it", self.number));
                common.counters.borrow_mut().abandoned += 1;
                return Some(());
            }
            Answer::Wrong => return None,
        };
        common.fabric.note(format_args!("CLIENT {} #{id} receives {response:?}", self.number));
        self.known.remember(&invocation, &response);
        match common.history.borrow_mut().end(id, response) {
            Err(what) => {
                self.fail(what);
                None
            }
            Ok(_) => Some(()),
        }
    }

    async fn get(&mut self, key: u8) -> Answer {
        let name = key_of(key);
        let request = GetRequest { consistency: Consistency::Linearizable, key: &name }.to_vec();
        loop {
            if self.connection.rng.below(16) == 0 {
                self.get_stale(key).await;
            }
            if self.connection.common.scenario.reads_stale_leaders()
                && self.connection.rng.below(2) == 0
            {
                self.connection.choose_other();
            }
            let Some(reply) = self.connection.attempt(methods::GET, &request).await else {
                continue;
            };
            match GetReply::decode(&reply) {
                Ok(GetReply::NotFound) => return Answer::Response(Response::Found(vec![])),
                Ok(GetReply::Found { revision, value }) => {
                    let found = self.found(key, value, revision);
                    return found.map_or(Answer::Wrong, |found| {
                        Answer::Response(Response::Found(vec![found]))
                    });
                }
                Ok(GetReply::Refused(refusal)) => {
                    if self.connection.handle_refusal(&refusal).await == AfterRefusal::Wrong {
                        return self.wrong(format!("a read was refused: {refusal}"));
                    }
                }
                Err(error) => return self.wrong(error.to_string()),
            }
        }
    }

    /// Reads the value of any replica. The read is not part of the history, but the value must have been written at its
    /// revision.
    async fn get_stale(&mut self, key: u8) {
        self.connection.choose_other();
        let name = key_of(key);
        let request = GetRequest { consistency: Consistency::Stale, key: &name }.to_vec();
        let Some(reply) = self.connection.attempt(methods::GET, &request).await else { return };
        if let Ok(GetReply::Found { revision, value }) = GetReply::decode(&reply)
            && let Some(Found { tag, .. }) = self.found(key, value, revision)
        {
            self.connection.common.counters.borrow_mut().stale_reads += 1;
            let noted = self.connection.common.history.borrow_mut().note_write(key, &tag, revision);
            if let Err(what) = noted {
                self.fail(what);
            }
        }
    }

    async fn scan(&mut self, from: u8, until: u8, max: u32) -> Answer {
        let (first, end) = (key_of(from), key_of(until));
        let request = ScanRequest {
            consistency: Consistency::Linearizable,
            from: &first,
            until: Some(&end),
            pairs_max: max,
            bytes_max: 1 << 20,
        }
        .to_vec();
        loop {
            let Some(reply) = self.connection.attempt(methods::SCAN, &request).await else {
                continue;
            };
            match ScanReply::decode(&reply) {
                Ok(ScanReply::Pairs { pairs, .. }) => {
                    let found = pairs
                        .iter()
                        .map(|pair| self.found(number_of(pair.key)?, pair.value, pair.revision));
                    let found: Option<Vec<Found>> = found.collect();
                    return found
                        .map_or(Answer::Wrong, |found| Answer::Response(Response::Found(found)));
                }
                Ok(ScanReply::Refused(refusal)) => {
                    if self.connection.handle_refusal(&refusal).await == AfterRefusal::Wrong {
                        return self.wrong(format!("a scan was refused: {refusal}"));
                    }
                }
                Err(error) => return self.wrong(error.to_string()),
            }
        }
    }

    fn found(&self, key: u8, value: &[u8], revision: u64) -> Option<Found> {
        let tag = tag_of(value);
        if tag.is_none() {
            let text = String::from_utf8_lossy(value).into_owned();
            self.fail(format!("key {key} has a value that nobody wrote: {text}"));
        }
        tag.map(|tag| Found { key, tag, revision })
    }

    async fn change(&mut self, invocation: &Invocation) -> Answer {
        self.sequence += 1;
        let first_pending = self.draw_first_pending();
        let command = self.command(invocation, first_pending);
        let may_abandon = self.abandons_left > 0;
        let applied = match self.write(&command, may_abandon).await {
            Err(()) => return Answer::Wrong,
            Ok(None) => {
                self.abandons_left -= 1;
                return Answer::Abandoned;
            }
            Ok(Some(applied)) => applied,
        };
        if self.connection.rng.below(8) == 0 && !self.is_repeated(&command, applied).await {
            return Answer::Wrong;
        }
        match Response::of(applied) {
            Some(response) => Answer::Response(response),
            None => self.wrong(format!("a write of one key, and {applied:?} came")),
        }
    }

    /// Sends a write again, and checks for an equal result.
    async fn is_repeated(&mut self, command: &[u8], applied: Applied) -> bool {
        self.connection.common.counters.borrow_mut().repeats += 1;
        match self.write(command, false).await {
            Ok(Some(again)) if again == applied => true,
            Ok(again) => {
                self.fail(format!("a write has the results {applied:?} and {again:?}"));
                false
            }
            Err(()) => false,
        }
    }

    /// The first write whose result the session has to keep.
    fn draw_first_pending(&mut self) -> u64 {
        let pending_max = self.connection.common.scenario.pending_max;
        let kept = if pending_max > 1 { self.connection.rng.below(pending_max) } else { 0 };
        self.sequence.saturating_sub(kept).max(1)
    }

    fn command(&self, invocation: &Invocation, first_pending: u64) -> Vec<u8> {
        let change = Change::of(invocation, &|key| key_of(key).to_vec());
        let (session, sequence, op) = (self.session, self.sequence, change.op());
        Command::Write { session, sequence, first_pending, op }.to_vec()
    }

    /// Sends a command until a result arrives, or the client abandons the write: `Ok(None)`.
    async fn write(&mut self, command: &[u8], may_abandon: bool) -> Result<Option<Applied>, ()> {
        loop {
            let Some(reply) = self.connection.attempt(methods::WRITE, command).await else {
                if may_abandon && self.connection.rng.below(3) == 0 {
                    return Ok(None);
                }
                continue;
            };
            match WriteReply::decode(&reply) {
                Ok(WriteReply::Applied(applied)) => return Ok(Some(applied)),
                Ok(WriteReply::Refused(refusal)) => {
                    if self.connection.handle_refusal(&refusal).await == AfterRefusal::Wrong {
                        self.fail(format!("a write was refused: {refusal}"));
                        return Err(());
                    }
                }
                Err(error) => {
                    self.fail(error.to_string());
                    return Err(());
                }
            }
        }
    }

    fn wrong(&self, what: String) -> Answer {
        self.fail(what);
        Answer::Wrong
    }

    fn fail(&self, what: String) {
        self.connection.common.fail(format!("client {}: {what}", self.number));
    }
}
