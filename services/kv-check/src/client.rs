//! A client with consecutive operations. As the protocol requires, the client repeats an operation until a result
//! arrives.

use std::collections::BTreeMap;

use petrel_kv::api::{
    Applied, Consistency, GetReply, GetRequest, Outcome, ScanReply, ScanRequest, WriteReply,
    methods,
};
use petrel_kv::command::{Command, Expected, Op};

use crate::history::{Ask, Expects, Found, Told};
use crate::line::{Line, Next};
use crate::value::{key_of, number_of, tag_of, value_of};

pub(crate) struct Client {
    line: Line,
    number: u32,
    /// The session, and the number of the last write.
    session: u64,
    sequence: u64,
    give_ups: u64,
    /// The last known tag and revision of keys: for conditions.
    known: BTreeMap<u8, (String, u64)>,
}

/// The outcome of an operation.
enum Answer {
    Told(Told),
    /// The client has abandoned the operation.
    GivenUp,
    /// A rule was broken.
    Wrong,
}

impl Client {
    pub(crate) fn new(line: Line, number: u32) -> Self {
        let give_ups = line.common.scenario.load.give_ups;
        Self { line, number, session: 0, sequence: 0, give_ups, known: BTreeMap::new() }
    }

    /// All operations during the fault window.
    pub(crate) async fn run(mut self) {
        let load = self.line.common.scenario.load;
        if self.open().await.is_some() {
            let rounds = if self.line.common.scenario.has_scouts() { 3 } else { 1 };
            for _ in 0..rounds * load.ops {
                let ask = self.draw();
                if self.perform(ask).await.is_none() {
                    break;
                }
                // Scouts pause less, to read while an inconsistency would be visible.
                let is_scout = self.line.common.scenario.has_scouts();
                self.line.pause(load.pause_ns_max >> if is_scout { 2 } else { 0 }).await;
            }
        }
        self.leave();
    }

    /// Reads every key, for the final check.
    pub(crate) async fn read_all(mut self) {
        for key in 0..self.line.common.scenario.load.keys {
            if self.perform(Ask::Get { key }).await.is_none() {
                break;
            }
        }
        self.leave();
    }

    fn leave(&self) {
        let busy = &self.line.common.clients_busy;
        busy.set(busy.get() - 1);
    }

    async fn open(&mut self) -> Option<()> {
        let mut command = Vec::new();
        Command::OpenSession.encode(&mut command);
        let applied = self.write(&command, false).await.ok()??;
        if applied.outcome != Outcome::SessionOpened {
            self.fail(format!("a session was asked for, and {applied:?} came"));
            return None;
        }
        self.session = applied.index;
        Some(())
    }

    fn draw(&mut self) -> Ask {
        let load = self.line.common.scenario.load;
        let rng = &mut self.line.rng;
        let key = rng.below(u64::from(load.keys)) as u8;
        let kind = rng.below(10);
        if load.has_scans && kind == 9 {
            let from = rng.below(u64::from(load.keys)) as u8;
            let until = rng.between(u64::from(from), u64::from(load.keys)) as u8;
            return Ask::Scan { from, until, max: rng.between(1, 6) as u32 };
        }
        let padding = rng.below(load.value_bytes_max + 1);
        // The tag's write has the next number.
        let tag = format!("{}.{}.{padding}", self.number, self.sequence + 1);
        match kind {
            0..4 => Ask::Put { key, tag },
            4 => Ask::Delete { key },
            5 => Ask::Cas { key, expected: self.draw_expected(key), tag },
            6 => Ask::CasDelete { key, expected: self.draw_expected(key) },
            _ => Ask::Get { key },
        }
    }

    fn draw_expected(&mut self, key: u8) -> Expects {
        let known = self.known.get(&key);
        match (self.line.rng.below(4), known) {
            (0, _) | (_, None) => Expects::Absent,
            (1, Some((tag, _))) => Expects::Tag(tag.clone()),
            (_, Some((_, revision))) => Expects::Revision(*revision),
        }
    }

    /// Performs an operation, and records call and end in the history.
    async fn perform(&mut self, ask: Ask) -> Option<()> {
        let common = self.line.common.clone();
        self.line.begin();
        let id = common.history.borrow_mut().begin(self.number, ask.clone());
        common.fabric.note(format_args!("CLIENT {} #{id} asks {ask:?}", self.number));
        let answer = match &ask {
            Ask::Get { key } => self.get(*key).await,
            Ask::Scan { from, until, max } => self.scan(*from, *until, *max).await,
            _ => self.change(&ask).await,
        };
        let told = match answer {
            Answer::Told(told) => told,
            Answer::GivenUp => {
                common.fabric.note(format_args!("CLIENT {} #{id} gives up", self.number));
                common.tally.borrow_mut().given_up += 1;
                return Some(());
            }
            Answer::Wrong => return None,
        };
        common.fabric.note(format_args!("CLIENT {} #{id} is told {told:?}", self.number));
        self.remember(&ask, &told);
        match common.history.borrow_mut().end(id, told) {
            Err(what) if !common.histories_only => {
                self.fail(what);
                None
            }
            _ => Some(()),
        }
    }

    fn remember(&mut self, ask: &Ask, told: &Told) {
        match (ask, told) {
            (_, Told::Found(found)) => {
                for Found { key, tag, revision } in found {
                    self.known.insert(*key, (tag.clone(), *revision));
                }
            }
            (Ask::Put { key, tag } | Ask::Cas { key, tag, .. }, Told::Changed { index, .. }) => {
                self.known.insert(*key, (tag.clone(), *index));
            }
            _ => {}
        }
    }

    async fn get(&mut self, key: u8) -> Answer {
        let name = key_of(key);
        let mut request = Vec::new();
        GetRequest { consistency: Consistency::Linearizable, key: &name }.encode(&mut request);
        loop {
            if self.line.rng.below(16) == 0 {
                self.get_stale(key).await;
            }
            if self.line.common.scenario.has_scouts() && self.line.rng.below(2) == 0 {
                self.line.look_elsewhere();
            }
            let Some(reply) = self.line.attempt(methods::GET, &request).await else { continue };
            match GetReply::decode(&reply) {
                Ok(GetReply::NotFound) => return Answer::Told(Told::Found(vec![])),
                Ok(GetReply::Found { revision, value }) => {
                    let found = self.found(key, value, revision);
                    return found
                        .map_or(Answer::Wrong, |found| Answer::Told(Told::Found(vec![found])));
                }
                Ok(GetReply::Refused(refusal)) => {
                    if self.line.heed(&refusal).await == Next::Wrong {
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
        self.line.look_elsewhere();
        let name = key_of(key);
        let mut request = Vec::new();
        GetRequest { consistency: Consistency::Stale, key: &name }.encode(&mut request);
        let Some(reply) = self.line.attempt(methods::GET, &request).await else { return };
        if let Ok(GetReply::Found { revision, value }) = GetReply::decode(&reply)
            && let Some(Found { tag, .. }) = self.found(key, value, revision)
        {
            self.line.common.tally.borrow_mut().stale_reads += 1;
            let noted = self.line.common.history.borrow_mut().note_write(key, &tag, revision);
            if let (Err(what), false) = (noted, self.line.common.histories_only) {
                self.fail(what);
            }
        }
    }

    async fn scan(&mut self, from: u8, until: u8, max: u32) -> Answer {
        let (first, end) = (key_of(from), key_of(until));
        let mut request = Vec::new();
        ScanRequest {
            consistency: Consistency::Linearizable,
            from: &first,
            until: Some(&end),
            pairs_max: max,
            bytes_max: 1 << 20,
        }
        .encode(&mut request);
        loop {
            let Some(reply) = self.line.attempt(methods::SCAN, &request).await else { continue };
            match ScanReply::decode(&reply) {
                Ok(ScanReply::Pairs { pairs, .. }) => {
                    let found = pairs
                        .iter()
                        .map(|pair| self.found(number_of(pair.key)?, pair.value, pair.revision));
                    let found: Option<Vec<Found>> = found.collect();
                    return found.map_or(Answer::Wrong, |found| Answer::Told(Told::Found(found)));
                }
                Ok(ScanReply::Refused(refusal)) => {
                    if self.line.heed(&refusal).await == Next::Wrong {
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

    async fn change(&mut self, ask: &Ask) -> Answer {
        self.sequence += 1;
        let first_pending = self.draw_first_pending();
        let command = self.command(ask, first_pending);
        let may_give_up = self.give_ups > 0;
        let applied = match self.write(&command, may_give_up).await {
            Err(()) => return Answer::Wrong,
            Ok(None) => {
                self.give_ups -= 1;
                return Answer::GivenUp;
            }
            Ok(Some(applied)) => applied,
        };
        if self.line.rng.below(8) == 0 && !self.is_repeated(&command, applied).await {
            return Answer::Wrong;
        }
        match Told::of(applied) {
            Some(told) => Answer::Told(told),
            None => self.wrong(format!("a write of one key, and {applied:?} came")),
        }
    }

    /// Sends a write again, and checks for an equal result.
    async fn is_repeated(&mut self, command: &[u8], applied: Applied) -> bool {
        self.line.common.tally.borrow_mut().repeats += 1;
        match self.write(command, false).await {
            Ok(Some(again)) if again == applied || self.line.common.histories_only => true,
            Ok(again) => {
                self.fail(format!("a write has the results {applied:?} and {again:?}"));
                false
            }
            Err(()) => false,
        }
    }

    /// The first write whose result the session has to keep.
    fn draw_first_pending(&mut self) -> u64 {
        let pending_max = self.line.common.scenario.pending_max;
        let kept = if pending_max > 1 { self.line.rng.below(pending_max) } else { 0 };
        self.sequence.saturating_sub(kept).max(1)
    }

    fn command(&self, ask: &Ask, first_pending: u64) -> Vec<u8> {
        let (key, tag, expects) = match ask {
            Ask::Put { key, tag } => (*key, tag.as_str(), &Expects::Absent),
            Ask::Delete { key } => (*key, "", &Expects::Absent),
            Ask::Cas { key, expected, tag } => (*key, tag.as_str(), expected),
            Ask::CasDelete { key, expected } => (*key, "", expected),
            Ask::Get { .. } | Ask::Scan { .. } => unreachable!("reads are no commands"),
        };
        let (name, new) = (key_of(key), value_of(tag));
        let old = if let Expects::Tag(tag) = expects { value_of(tag) } else { Vec::new() };
        let (key, value) = (&name[..], &new[..]);
        let expected = match expects {
            Expects::Absent => Expected::Absent,
            Expects::Revision(revision) => Expected::Revision(*revision),
            Expects::Tag(_) => Expected::Value(&old),
        };
        let op = match ask {
            Ask::Put { .. } => Op::Put { key, value },
            Ask::Cas { .. } => Op::Cas { key, expected, value },
            Ask::CasDelete { .. } => Op::CasDelete { key, expected },
            _ => Op::Delete { key },
        };
        let (session, sequence) = (self.session, self.sequence);
        let mut command = Vec::new();
        Command::Write { session, sequence, first_pending, op }.encode(&mut command);
        command
    }

    /// Sends a command until a result arrives, or the client abandons the write: `Ok(None)`.
    async fn write(&mut self, command: &[u8], may_give_up: bool) -> Result<Option<Applied>, ()> {
        loop {
            let Some(reply) = self.line.attempt(methods::WRITE, command).await else {
                if may_give_up && self.line.rng.below(3) == 0 {
                    return Ok(None);
                }
                continue;
            };
            match WriteReply::decode(&reply) {
                Ok(WriteReply::Applied(applied)) => return Ok(Some(applied)),
                Ok(WriteReply::Refused(refusal)) => {
                    if self.line.heed(&refusal).await == Next::Wrong {
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
        self.line.common.fail(format!("client {}: {what}", self.number));
    }
}
