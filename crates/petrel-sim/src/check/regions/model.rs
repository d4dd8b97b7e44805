//! The model of memories, with one record for each operation.
//!
//! The simulator runs one turn after the other. So begins and ends of operations, effects on memory and revocations have one
//! order, and the model counts these moments. Each word of a memory has a *floor*: the least that an operation sees which
//! begins now. The kinds of words differ in the floor's meaning:
//!
//! | words | operations | value | floor |
//! | --- | --- | --- | --- |
//! | sums | FETCH_ADD | two bits for each of 32 additions: the number of executions | all bits seen |
//! | swapped | COMPARE_SWAP | the last successful operation's number | the last value seen |
//! | versioned | WRITE_VERSIONED | the version, and the number of its operation | the last version |
//! | plain | WRITE | the number of the last operation | the latest begin of a WRITE that has taken effect |
//!
//! | rule | checked |
//! | --- | --- |
//! | a sum counts each addition at most once, all that succeeded, none said not to be executed | by each observation |
//! | the former values of successful additions are a chain: each includes the earlier ones | at success, and for reads |
//! | swaps are one chain of values; no value is replaced twice, and no failed swap is part of the chain | by each observation |
//! | a WRITE is no more seen where a later WRITE has taken effect; an unknown outcome may take effect late, once | by each observation |
//! | a versioned value is never torn; a version has one value, and versions only grow | by each observation |
//! | an operation said not to be executed is seen neither before nor after | at the end of the operation, by each observation |
//! | no operation succeeds that begins with a revoked or guessed key, without the right, or beyond the end | at success |
//! | no operation is denied but for these reasons | at failure |
//! | a revoked memory changes no more; at the end each word is what the model allows | at the end of the run |
//! | the server's counters are between successes and attempts | at the end of the run |

use std::collections::BTreeMap;
use std::ops::Range;

use petrel::region::{Access, Region, RegionKey, RegionMemory, RegionStats, Regions};
use petrel::{Error, Execution, Status};
use petrel_proto::limits::PACKET_BYTES_MIN;

use super::Counts;
use crate::fabric::SimAddr;

/// The words of a memory.
pub(super) const SUMS: Range<usize> = 0..8;
pub(super) const SWAPPED: Range<usize> = 8..10;
/// A version, and the words of the value.
pub(super) const VERSIONED: [Range<usize>; 2] = [10..16, 16..400];
pub(super) const PLAIN: Range<usize> = 400..2_000;
pub(super) const WORDS: usize = PLAIN.end;

/// Additions counted by a word.
const ADDS_PER_WORD: usize = 32;

const HEADER_BYTES: usize = 24;

/// The actions of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// First words and their counts.
    Read(Vec<(usize, usize)>),
    Write(Range<usize>),
    ReadVersioned(usize),
    WriteVersioned(usize),
    Swap {
        word: usize,
        expected: u64,
    },
    Add {
        word: usize,
        bit: u64,
    },
}

impl Kind {
    pub(super) fn is_read(&self) -> bool {
        matches!(self, Self::Read(_) | Self::ReadVersioned(_))
    }

    /// Returns true if the server may write words before the whole request has come: a WRITE of several packets (§15.2).
    pub(super) fn may_be_partial(&self) -> bool {
        matches!(self, Self::Write(range) if HEADER_BYTES + 8 * range.len() > PACKET_BYTES_MIN as usize)
    }

    fn right(&self) -> Access {
        match self {
            Self::Read(_) | Self::ReadVersioned(_) => Access::READ,
            Self::Write(_) | Self::WriteVersioned(_) => Access::WRITE,
            Self::Swap { .. } | Self::Add { .. } => Access::ATOMIC,
        }
    }

    /// Returns the method's number and the request's offsets and lengths, both in words.
    fn request(&self) -> (u16, Vec<(usize, usize)>) {
        match self {
            Self::Read(pieces) if pieces.len() == 1 => (65_520, pieces.clone()),
            Self::Read(pieces) => (65_524, pieces.clone()),
            Self::Write(range) => (65_521, vec![(range.start, 0)]),
            Self::Swap { word, .. } => (65_522, vec![(*word, 0)]),
            Self::Add { word, .. } => (65_523, vec![(*word, 0)]),
            Self::ReadVersioned(place) => {
                (65_525, vec![(VERSIONED[*place].start, VERSIONED[*place].len() - 1)])
            }
            Self::WriteVersioned(place) => (65_526, vec![(VERSIONED[*place].start, 0)]),
        }
    }

    /// Returns the words that the operation observes.
    fn observed(&self) -> Vec<usize> {
        match self {
            Self::Read(pieces) => {
                pieces.iter().flat_map(|&(first, count)| first..first + count).collect()
            }
            Self::Write(_) => Vec::new(),
            Self::ReadVersioned(place) | Self::WriteVersioned(place) => {
                vec![VERSIONED[*place].start]
            }
            Self::Swap { word, .. } | Self::Add { word, .. } => vec![*word],
        }
    }

    fn is_beyond(&self) -> bool {
        match self {
            Self::Read(pieces) => pieces.iter().any(|(first, count)| first + count > WORDS),
            Self::Write(range) => range.end > WORDS,
            _ => false,
        }
    }
}

#[derive(Clone, Debug)]
pub(in crate::check) struct Operation {
    pub(super) kind: Kind,
    pub(super) key: usize,
    /// Whether the secret is guessed.
    pub(super) is_guess: bool,
    /// Whether the caller allows several executions.
    pub(super) may_repeat: bool,
    pub(super) must_succeed: bool,
    pub(super) attempts_max: u32,
    /// The calling endpoint in one incarnation.
    pub(super) client: u32,
    pub(super) client_at: SimAddr,
    pub(super) server: SimAddr,
    pub(super) issued_ns: u64,
    pub(super) deadline_ns: u64,
    pub(super) outcome: Outcome,
    /// The moments of begin and end.
    begun: Option<u64>,
    ended: u64,
    /// The floors of all observed words at the begin.
    floors: Vec<u64>,
    /// Whether the value was seen in memory, and for a WRITE the first moment, for each word.
    is_seen: bool,
    first_seen: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Pending,
    Done,
    /// Executed without an effect: another value than expected.
    Differed,
    NotExecuted,
    Unknown,
}

#[derive(Debug)]
struct Process {
    at: SimAddr,
    regions: Regions,
    is_running: bool,
    revoked: u64,
}

#[derive(Debug)]
struct Memory {
    process: usize,
    /// The server's own access.
    keeper: Region,
    /// The words at the time when the last key was revoked that could change the memory.
    last: Option<Vec<u64>>,
    floors: Vec<u64>,
    /// The additions of each sum, by place.
    adds: [Vec<u32>; SUMS.end],
    /// The former values of successful additions, with their bits.
    sums: [Vec<(u64, u64)>; SUMS.end],
    versions: [BTreeMap<u64, u32>; VERSIONED.len()],
    unknown: u64,
}

#[derive(Debug)]
struct Key {
    region: Option<Region>,
    key: RegionKey,
    access: Access,
    memory: usize,
    revoked: Option<u64>,
}

/// All memories, keys and operations of a world.
#[derive(Debug, Default)]
pub(in crate::check) struct Model {
    moment: u64,
    processes: Vec<Process>,
    memories: Vec<Memory>,
    keys: Vec<Key>,
    operations: Vec<Operation>,
    pub(in crate::check) counts: Counts,
}

type Checked = Result<(), String>;

fn check(is_right: bool, wrong: impl FnOnce() -> String) -> Checked {
    if is_right { Ok(()) } else { Err(wrong()) }
}

/// Returns the value that an operation writes: no half occurs in the value of another operation.
pub(super) fn value_of(id: u32) -> u64 {
    u64::from(id) << 32 | u64::from(!id)
}

fn id_of(value: u64) -> Option<u32> {
    let id = (value >> 32) as u32;
    (value_of(id) == value).then_some(id)
}

pub(super) fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

fn words_of(memory: &RegionMemory) -> Vec<u64> {
    let mut bytes = vec![0; 8 * WORDS];
    memory.read(0, &mut bytes).expect("a region has all its words");
    words(&bytes)
}

/// Processes and keys.
impl Model {
    /// Starts a process with some memory, and returns its regions.
    pub(in crate::check) fn start_process(&mut self, at: SimAddr) {
        self.processes.push(Process { at, regions: Regions::new(), is_running: true, revoked: 0 });
        self.register(at, Access::READ);
    }

    fn running(&self, at: SimAddr) -> Option<usize> {
        self.processes.iter().position(|process| process.at == at && process.is_running)
    }

    /// Returns the regions of the process at an address.
    pub(in crate::check) fn regions_at(&self, at: SimAddr) -> Option<Regions> {
        Some(self.processes[self.running(at)?].regions.clone())
    }

    pub(in crate::check) fn end_process(&mut self, at: SimAddr) {
        let Some(process) = self.running(at) else { return };
        self.keys_at(at, true).into_iter().for_each(|key| self.revoke(key));
        self.processes[process].is_running = false;
    }

    /// Registers new memory under two keys: with all rights, and with `few`.
    pub(super) fn register(&mut self, at: SimAddr, few: Access) {
        let Some(process) = self.running(at) else { return };
        let regions = &self.processes[process].regions;
        let memory = RegionMemory::private(8 * WORDS as u64).expect("the host has memory");
        let keeper = regions.register(memory, Access::READ).expect("a first region");
        let all = Access::READ | Access::WRITE | Access::ATOMIC;
        for access in [all, few] {
            let region = keeper.register_with(access).expect("rights that all memory can have");
            let (key, memory) = (region.key(), self.memories.len());
            self.keys.push(Key { region: Some(region), key, access, memory, revoked: None });
        }
        self.counts.registered += 2;
        self.memories.push(Memory {
            process,
            keeper,
            last: None,
            floors: vec![0; WORDS],
            adds: Default::default(),
            sums: Default::default(),
            versions: Default::default(),
            unknown: 0,
        });
    }

    /// Returns the valid keys of the process at an address, or the keys of all its processes.
    pub(super) fn keys_at(&self, at: SimAddr, are_valid: bool) -> Vec<usize> {
        let is_there = |key: &Key| {
            self.processes[self.memories[key.memory].process].at == at
                && (key.revoked.is_none() || !are_valid)
        };
        (0..self.keys.len()).filter(|&key| is_there(&self.keys[key])).collect()
    }

    pub(super) fn memories_at(&self, at: SimAddr) -> usize {
        let process = self.running(at);
        self.memories.iter().filter(|memory| Some(memory.process) == process).count()
    }

    pub(super) fn may_read(&self, key: usize) -> bool {
        self.keys[key].access.includes(Access::READ)
    }

    pub(super) fn key(&self, key: usize) -> RegionKey {
        self.keys[key].key
    }

    pub(super) fn revoke(&mut self, key: usize) {
        self.moment += 1;
        let Key { region, revoked, memory, .. } = &mut self.keys[key];
        (*region, *revoked) = (None, Some(self.moment));
        let place = *memory;
        let may_change =
            |key: &Key| key.memory == place && key.revoked.is_none() && key.access.may_change();
        let is_last = !self.keys.iter().any(may_change);
        let memory = &mut self.memories[place];
        if is_last && memory.last.is_none() {
            memory.last = Some(words_of(&memory.keeper));
        }
        let process = &mut self.processes[memory.process];
        process.revoked += 1;
        self.counts.revoked += 1;
        self.counts.revoked_again += u64::from(process.revoked > 1);
    }
}

impl Model {
    pub(in crate::check) fn operation_count(&self) -> u64 {
        self.operations.len() as u64
    }

    pub(super) fn operation(&self, id: u32) -> &Operation {
        &self.operations[id as usize - 1]
    }

    fn operation_mut(&mut self, id: u32) -> &mut Operation {
        &mut self.operations[id as usize - 1]
    }

    fn memory_of(&self, key: usize) -> &Memory {
        &self.memories[self.keys[key].memory]
    }

    /// Returns the next addition to one of the sums; `None` if the word is no longer a sum.
    pub(super) fn next_add(&self, key: usize, word: usize) -> Option<Kind> {
        let place = self.memory_of(key).adds[word].len();
        (place < ADDS_PER_WORD).then(|| Kind::Add { word, bit: 1 << (2 * place) })
    }

    pub(super) fn last_seen(&self, key: usize, word: usize) -> u64 {
        self.memory_of(key).floors[word]
    }

    /// Adds an operation that has not begun. Returns its number, from 1 on.
    pub(super) fn issue(&mut self, operation: Operation) -> u32 {
        let id = self.operations.len() as u32 + 1;
        if let Kind::Add { word, .. } = operation.kind {
            let memory = self.keys[operation.key].memory;
            self.memories[memory].adds[word].push(id);
        }
        self.counts.operations += 1;
        self.operations.push(operation);
        id
    }

    pub(super) fn begin(&mut self, id: u32, issued_ns: u64, deadline_ns: u64) {
        self.moment += 1;
        let moment = self.moment;
        let operation = self.operation(id);
        let floors = &self.memory_of(operation.key).floors;
        let observed = operation.kind.observed();
        let floors = observed.iter().filter_map(|&word| floors.get(word).copied()).collect();
        let operation = self.operation_mut(id);
        (operation.begun, operation.floors) = (Some(moment), floors);
        (operation.issued_ns, operation.deadline_ns) = (issued_ns, deadline_ns);
    }

    pub(super) fn is_pending(&self, id: u32) -> bool {
        self.operation(id).outcome == Outcome::Pending
    }

    /// Records that a caller no longer waits. Returns true if the caller had waited.
    pub(super) fn give_up(&mut self, id: u32) -> bool {
        let operation = self.operation_mut(id);
        let is_pending = operation.outcome == Outcome::Pending;
        if is_pending {
            let has_begun = operation.begun.is_some();
            operation.outcome = if has_begun { Outcome::Unknown } else { Outcome::NotExecuted };
        }
        is_pending
    }

    /// Gives up the operations of a client that has crashed.
    pub(in crate::check) fn lose(&mut self, client: u32) {
        for id in 1..=self.operations.len() as u32 {
            if self.operation(id).client == client {
                self.give_up(id);
            }
        }
    }

    /// Records the outcome.
    pub(super) fn end(&mut self, id: u32, reply: &Result<Vec<u64>, Error>) -> Checked {
        self.moment += 1;
        let operation = self.operation(id);
        check(operation.outcome == Outcome::Pending, || "ended twice".to_owned())?;
        let is_denied = |failure: &Error| {
            failure.execution == Execution::Answered
                && matches!(failure.status, Status::PermissionDenied | Status::OutOfRange)
        };
        let outcome = match reply {
            Ok(_) => Outcome::Done,
            Err(failure) => match failure.execution {
                Execution::NotSent | Execution::Refused => Outcome::NotExecuted,
                _ if is_denied(failure) => self.denied(operation, failure.status)?,
                _ => Outcome::Unknown,
            },
        };
        match reply {
            Err(failure) if is_denied(failure) => self.counts.denied += 1,
            _ if outcome == Outcome::NotExecuted => self.counts.not_executed += 1,
            _ => {}
        }
        let moment = self.moment;
        let operation = self.operation_mut(id);
        (operation.outcome, operation.ended) = (outcome, moment);
        let key = operation.key;
        match reply {
            Ok(answer) => {
                self.counts.succeeded += 1;
                let operation = self.operation(id);
                let expected = self.expected(operation);
                check(expected.is_none(), || format!("succeeded, and not with {expected:?}"))?;
                self.succeed(id, answer)
            }
            Err(_) if outcome == Outcome::Unknown => {
                let memory = &mut self.memories[self.keys[key].memory];
                memory.unknown += 1;
                self.counts.unknown_again += u64::from(memory.unknown > 1);
                self.counts.unknown += 1;
                Ok(())
            }
            Err(_) => {
                let wrong = || "was said not to be executed, and had been seen".to_owned();
                check(!self.is_visible(id), wrong)
            }
        }
    }

    /// Returns the status with which an operation must be denied, according to its key at the begin.
    fn expected(&self, operation: &Operation) -> Option<Status> {
        let key = &self.keys[operation.key];
        let was_valid = key.revoked.is_none_or(|revoked| Some(revoked) > operation.begun);
        let has_right = key.access.includes(operation.kind.right());
        if operation.is_guess || !was_valid || !has_right {
            return Some(Status::PermissionDenied);
        }
        operation.kind.is_beyond().then_some(Status::OutOfRange)
    }

    /// Returns the outcome of a denied operation. A WRITE of several packets may have begun before the revocation.
    fn denied(&self, operation: &Operation, status: Status) -> Result<Outcome, String> {
        let is_revoked = self.keys[operation.key].revoked.is_some();
        match self.expected(operation) {
            Some(expected) if expected == status => Ok(Outcome::NotExecuted),
            _ if status == Status::PermissionDenied && is_revoked => match operation.kind {
                Kind::Write(_) => Ok(Outcome::Unknown),
                _ => Ok(Outcome::NotExecuted),
            },
            expected => Err(format!("was denied with {status:?} instead of {expected:?}")),
        }
    }

    /// Returns true if an observation has shown the operation's effect.
    fn is_visible(&self, id: u32) -> bool {
        let operation = self.operation(id);
        let floors = &self.memory_of(operation.key).floors;
        match operation.kind {
            Kind::Add { word, bit } => floors[word] & (bit | bit << 1) != 0,
            _ => operation.is_seen,
        }
    }
}

impl Model {
    /// Checks the answer of an operation that has succeeded, and raises the floors of its words.
    fn succeed(&mut self, id: u32, answer: &[u64]) -> Checked {
        let Operation { kind, key, floors, begun, .. } = self.operation(id).clone();
        let place = self.keys[key].memory;
        match (kind, answer) {
            (kind @ Kind::Read(_), words) => {
                let observed = kind.observed();
                check(words.len() == observed.len(), || "read another length".to_owned())?;
                let mut all = observed.into_iter().zip(words).zip(floors);
                all.try_for_each(|((word, &value), floor)| self.observe(place, word, value, floor))
            }
            (Kind::Write(range), []) => {
                let floors = &mut self.memories[place].floors[range];
                floors.iter_mut().for_each(|floor| *floor = begun.max(Some(*floor)).unwrap_or(0));
                Ok(())
            }
            (Kind::Add { word, bit }, &[former]) => {
                let before = self.memories[place].floors[word];
                self.observe_sum(place, word, former, floors[0], bit)?;
                self.memories[place].floors[word] = before | former | bit;
                self.memories[place].sums[word].push((former, bit));
                Ok(())
            }
            (Kind::Swap { word, expected }, &[former]) => {
                self.observe(place, word, former, floors[0])?;
                if former == expected {
                    return self.observe(place, word, value_of(id), former);
                }
                let wrong = || "saw another value than expected, and took effect".to_owned();
                self.operation_mut(id).outcome = Outcome::Differed;
                check(!self.is_visible(id), wrong)
            }
            (Kind::ReadVersioned(index), [version, value @ ..]) => {
                let is_whole = value.len() == VERSIONED[index].len() - 1
                    && value.iter().all(|word| *word == value[0]);
                check(is_whole, || format!("saw a torn value of version {version}: {value:?}"))?;
                self.observe_version(place, index, *version, value[0], floors[0])
            }
            (Kind::WriteVersioned(index), &[version]) => {
                let wrong = || format!("wrote version {version} after {floors:?}");
                check(version > floors[0], wrong)?;
                self.observe_version(place, index, version, value_of(id), floors[0])
            }
            (kind, answer) => Err(format!("{kind:?} was answered with {answer:?}")),
        }
    }

    /// Checks a word that an operation has seen, with the word's floor at the operation's begin.
    fn observe(&mut self, place: usize, word: usize, value: u64, floor: u64) -> Checked {
        self.counts.words_compared += 1;
        if SUMS.contains(&word) {
            self.observe_sum(place, word, value, floor, 0)?;
            self.memories[place].floors[word] |= value;
        } else if SWAPPED.contains(&word) {
            self.check_after(place, word, value, floor)?;
            let now = self.memories[place].floors[word];
            if self.check_after(place, word, value, now).is_ok() {
                self.memories[place].floors[word] = value;
            } else {
                self.check_after(place, word, now, value)?;
            }
        } else if PLAIN.contains(&word) {
            self.observe_plain(place, word, value, floor)?;
        }
        Ok(())
    }

    /// Checks a sum that an operation has seen: it has the floor's bits, not the operation's own, and only
    /// bits of additions. Of two sums seen, one includes the other.
    fn observe_sum(&self, place: usize, word: usize, value: u64, floor: u64, bit: u64) -> Checked {
        let memory = &self.memories[place];
        let may_be = |&(_, id): &(u64, u32)| {
            let operation = self.operation(id);
            operation.begun.is_some() && operation.outcome != Outcome::NotExecuted
        };
        let bits = (0..).map(|place| 1 << (2 * place)).zip(memory.adds[word].iter().copied());
        let allowed = bits.filter(may_be).fold(0, |all, (bit, _)| all | bit);
        let is_right = value & !allowed == 0 && value & floor == floor && value & bit == 0;
        check(is_right, || {
            format!("saw the sum {value:x} in word {word}, of {allowed:x}, after {floor:x}")
        })?;
        let (later, includes) = (value | bit, |all: u64, part: u64| all & part == part);
        let is_beside = |&(former, other): &(u64, u64)| {
            !includes(value, former | other) && !includes(former, later)
        };
        let beside = memory.sums[word].iter().find(|other| is_beside(other));
        check(beside.is_none(), || {
            format!("saw the sum {value:x} in word {word} beside {beside:x?}")
        })
    }

    /// Checks that swaps lead from a former value of a word, `floor`, to this value.
    fn check_after(&mut self, place: usize, word: usize, value: u64, floor: u64) -> Checked {
        let mut at = value;
        while at != floor {
            let found = id_of(at).filter(|&id| id > 0 && id <= self.operations.len() as u32);
            let wrong = || format!("saw {value:x} in word {word} after {floor:x}: by {at:x}");
            let operation = self.operation_mut(found.ok_or_else(wrong)?);
            let Kind::Swap { word: own, expected } = operation.kind else { return Err(wrong()) };
            operation.is_seen = true;
            let may_be =
                matches!(operation.outcome, Outcome::Pending | Outcome::Done | Outcome::Unknown)
                    && operation.begun.is_some();
            let key = operation.key;
            check(own == word && may_be && self.keys[key].memory == place, wrong)?;
            at = expected;
        }
        Ok(())
    }

    /// Checks a version that an operation has seen with its value, and raises the floor.
    fn observe_version(
        &mut self,
        place: usize,
        index: usize,
        version: u64,
        value: u64,
        floor: u64,
    ) -> Checked {
        let wrong =
            || format!("saw {value:x} as version {version} of value {index}, after {floor}");
        check(version >= floor && version.is_multiple_of(2), wrong)?;
        if version > 0 {
            let found = id_of(value).filter(|&id| id > 0 && id <= self.operations.len() as u32);
            let id = found.ok_or_else(wrong)?;
            let operation = self.operation_mut(id);
            operation.is_seen = true;
            let may_be = operation.outcome != Outcome::NotExecuted
                && operation.begun.is_some()
                && operation.kind == Kind::WriteVersioned(index);
            let key = operation.key;
            let versions = &mut self.memories[place].versions[index];
            let is_once = versions.iter().all(|(known, by)| (*known == version) == (*by == id));
            versions.insert(version, id);
            check(may_be && is_once && self.keys[key].memory == place, wrong)?;
        }
        check(version > 0 || value == 0, wrong)?;
        let floor = &mut self.memories[place].floors[VERSIONED[index].start];
        *floor = version.max(*floor);
        Ok(())
    }

    /// Checks a plain word that an operation has seen: zero, or the value of a WRITE that may have taken effect.
    fn observe_plain(&mut self, place: usize, word: usize, value: u64, floor: u64) -> Checked {
        if value == 0 {
            return check(floor == 0, || format!("saw no WRITE in word {word}, after {floor}"));
        }
        let moment = self.moment;
        let found = id_of(value).filter(|&id| id > 0 && id <= self.operations.len() as u32);
        let id = found.ok_or_else(|| format!("saw {value:x} in word {word}, by no operation"))?;
        let operation = self.operation_mut(id);
        let Kind::Write(range) = operation.kind.clone() else {
            return Err(format!("saw {value:x} in word {word}, by another operation"));
        };
        let is_in_range = range.contains(&word);
        operation.is_seen = true;
        // The last moment at which the WRITE may have taken effect.
        let effect = match operation.outcome {
            _ if operation.may_repeat || !is_in_range => u64::MAX,
            Outcome::Done => operation.ended,
            _ => {
                operation.first_seen.resize(range.len(), u64::MAX);
                let first = &mut operation.first_seen[word - range.start];
                *first = moment.min(*first);
                *first
            }
        };
        let (outcome, begun) = (operation.outcome, operation.begun);
        let is_there = is_in_range && self.keys[self.operation(id).key].memory == place;
        let is_right = is_there && outcome != Outcome::NotExecuted && floor <= effect;
        check(begun.is_some() && is_right, || {
            format!(
                "saw the WRITE {id} in word {word}, with effect until {effect}, after {floor}: {:?}",
                self.operation(id)
            )
        })?;
        let floor = &mut self.memories[place].floors[word];
        *floor = begun.max(Some(*floor)).unwrap_or(0);
        Ok(())
    }
}

/// The end of a run, and requests.
impl Model {
    /// Checks all memories and counters.
    pub(super) fn close(&mut self) -> Checked {
        let pending = |operation: &Operation| operation.outcome == Outcome::Pending;
        if let Some(operation) = self.operations.iter().find(|one| pending(one)) {
            return Err(format!("an operation never ended: {operation:?}"));
        }
        for place in 0..self.memories.len() {
            self.close_memory(place)
                .map_err(|wrong| format!("memory {place} at its end: {wrong}"))?;
        }
        (0..self.processes.len()).try_for_each(|process| self.check_stats(process))
    }

    /// Checks the words of a memory at the end of the run.
    fn close_memory(&mut self, place: usize) -> Checked {
        let memory = &self.memories[place];
        let now = words_of(&memory.keeper);
        if let Some(last) = &memory.last {
            check(*last == now, || "changed after its revocation".to_owned())?;
        }
        for (word, &value) in now.iter().enumerate() {
            let floor = self.memories[place].floors[word];
            self.observe(place, word, value, floor)?;
        }
        // Checks the chain of swaps of each word from its first value.
        SWAPPED.into_iter().try_for_each(|word| self.check_after(place, word, now[word], 0))?;
        for (index, range) in VERSIONED.into_iter().enumerate() {
            let (version, value) = (now[range.start], &now[range.start + 1..range.end]);
            check(value.iter().all(|word| *word == value[0]), || "a torn value".to_owned())?;
            let floor = self.memories[place].floors[range.start];
            self.observe_version(place, index, version, value[0], floor)?;
            let wrote = |operation: &&Operation| {
                self.keys[operation.key].memory == place
                    && operation.kind == Kind::WriteVersioned(index)
            };
            let (least, most) = self.count(wrote, |_| 1);
            check((least..=most).contains(&(version / 2)), || {
                format!("version {version} of {least} to {most} changes")
            })?;
        }
        Ok(())
    }

    /// Returns how often at most writers have changed the versioned value of a read since its begin.
    pub(super) fn changes_during(&self, read: &Operation) -> u64 {
        let Kind::ReadVersioned(index) = read.kind else { return 0 };
        let memory = self.keys[read.key].memory;
        let may_overlap = |other: &&Operation| {
            self.keys[other.key].memory == memory
                && other.kind == Kind::WriteVersioned(index)
                && (other.ended == 0 || Some(other.ended) > read.begun)
        };
        self.count(may_overlap, |_| 1).1
    }

    /// Returns how often operations were executed, at least and at most.
    fn count(
        &self,
        is_one: impl Fn(&&Operation) -> bool,
        times: impl Fn(&Operation) -> u64,
    ) -> (u64, u64) {
        let all = self.operations.iter().filter(is_one);
        all.fold((0, 0), |(least, most), operation| {
            let repeats = operation.may_repeat || operation.kind.is_read();
            let times_max = if repeats { u64::from(operation.attempts_max) } else { 1 };
            match operation.outcome {
                Outcome::Done | Outcome::Differed => {
                    (least + times(operation), most + times(operation) * times_max)
                }
                // An earlier attempt may have been executed.
                Outcome::NotExecuted if !repeats => (least, most),
                _ => (least, most + times(operation) * times_max),
            }
        })
    }

    /// Checks that a process counts each operation on regions.
    fn check_stats(&self, process: usize) -> Checked {
        let RegionStats { reads, writes, atomics, refused, .. } =
            self.processes[process].regions.stats();
        let is_own = |operation: &&Operation| {
            self.memory_of(operation.key).process == process && self.expected(operation).is_none()
        };
        let bounds_of = |right: Access| {
            let is_counted =
                move |operation: &&Operation| is_own(operation) && operation.kind.right() == right;
            self.count(is_counted, |operation| match &operation.kind {
                Kind::Read(pieces) => pieces.len() as u64,
                _ => 1,
            })
        };
        let at = self.processes[process].at;
        let attempts = self.operations.iter().filter(|operation| operation.server == at);
        let attempts = attempts.map(|operation| u64::from(operation.attempts_max)).sum();
        let all = [
            ("reads", reads, bounds_of(Access::READ)),
            ("writes", writes, bounds_of(Access::WRITE)),
            ("atomics", atomics, bounds_of(Access::ATOMIC)),
            ("refused", refused, (0, attempts)),
        ];
        all.into_iter().try_for_each(|(name, count, (least, most))| {
            check((least..=most).contains(&count), || {
                format!("a process at {at} counts {count} {name}, not {least} to {most}")
            })
        })
    }

    /// Returns the operation whose request begins with the payload of a first packet.
    pub(super) fn find(
        &self,
        ends: (SimAddr, SimAddr),
        method: u16,
        payload: &[u8],
    ) -> Option<u32> {
        let is_it = |&id: &u32| {
            let operation = self.operation(id);
            operation.outcome == Outcome::Pending
                && (operation.client_at, operation.server) == ends
                && operation.kind.request().0 == method
                && self.is_part_of_request(id, 0, payload)
        };
        (1..=self.operations.len() as u32).rev().find(is_it)
    }

    /// Returns true if an operation's request may leave: identical reads are not told apart.
    pub(in crate::check) fn may_leave(&self, id: u32) -> bool {
        let operation = self.operation(id);
        operation.outcome == Outcome::Pending || operation.kind.is_read()
    }

    /// Returns true if a payload is that of an operation's request at an offset.
    pub(in crate::check) fn is_part_of_request(
        &self,
        id: u32,
        offset: usize,
        payload: &[u8],
    ) -> bool {
        let operation = self.operation(id);
        let mut key = self.keys[operation.key].key.to_bytes();
        key[4] ^= u8::from(operation.is_guess);
        let mut head = Vec::with_capacity(2 * HEADER_BYTES);
        for (first, count) in operation.kind.request().1 {
            let (first, count) = (8 * first as u64, 8 * count as u32);
            head.extend_from_slice(&key[..4]);
            head.extend_from_slice(&count.to_le_bytes());
            head.extend_from_slice(&key[4..12]);
            head.extend_from_slice(&first.to_le_bytes());
        }
        let (word, count) = match operation.kind {
            Kind::Read(_) | Kind::ReadVersioned(_) => (0, 0),
            Kind::Write(ref range) => (value_of(id), range.len()),
            Kind::WriteVersioned(index) => (value_of(id), VERSIONED[index].len() - 1),
            Kind::Add { bit, .. } => (bit, 1),
            Kind::Swap { expected, .. } => {
                head.extend_from_slice(&expected.to_le_bytes());
                (value_of(id), 1)
            }
        };
        let word = word.to_le_bytes();
        let byte = |at: usize| match at.checked_sub(head.len()) {
            None => head[at],
            Some(at) => word[at % 8],
        };
        offset + payload.len() <= head.len() + 8 * count
            && (offset..).zip(payload).all(|(at, found)| byte(at) == *found)
    }
}

impl Operation {
    pub(super) fn new(kind: Kind, key: usize, ends: (SimAddr, SimAddr), client: u32) -> Self {
        let (client_at, server) = ends;
        Self {
            kind,
            key,
            is_guess: false,
            may_repeat: false,
            must_succeed: false,
            attempts_max: 1,
            client,
            client_at,
            server,
            issued_ns: 0,
            deadline_ns: 0,
            outcome: Outcome::Pending,
            begun: None,
            ended: 0,
            floors: Vec::new(),
            is_seen: false,
            first_seen: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::HostId;

    const SERVER: SimAddr = SimAddr { host: HostId(0), port: 1 };

    /// A model with one memory, whose first key grants all rights.
    fn model() -> Model {
        let mut model = Model::default();
        model.start_process(SERVER);
        model
    }

    fn begin(model: &mut Model, kind: Kind) -> u32 {
        let ends = (SimAddr::new(HostId(1), 1), SERVER);
        let id = model.issue(Operation::new(kind, 0, ends, 1));
        model.begin(id, 0, 0);
        id
    }

    fn run(model: &mut Model, kind: Kind, answer: &[u64]) -> Checked {
        let id = begin(model, kind);
        model.end(id, &Ok(answer.to_vec()))
    }

    fn read(model: &mut Model, word: usize, value: u64) -> Checked {
        run(model, Kind::Read(vec![(word, 1)]), &[value])
    }

    #[test]
    fn end__of_a_refused_write_that_was_seen() {
        for is_seen in [true, false] {
            let mut model = model();
            let word = PLAIN.start;
            let id = begin(&mut model, Kind::Write(word..word + 1));
            read(&mut model, word, if is_seen { value_of(id) } else { 0 }).unwrap();
            let error = Error::new(Status::DeadlineExceeded, "too late");
            let refused = Err(error.with_execution(Execution::Refused));
            assert_eq!(model.end(id, &refused).is_err(), is_seen);
            read(&mut model, word, value_of(id)).unwrap_err();
        }
    }

    #[test]
    fn observe__a_write_comes_late_and_once() {
        let mut model = model();
        let (word, range) = (PLAIN.start, PLAIN.start..PLAIN.start + 1);
        let late = begin(&mut model, Kind::Write(range.clone()));
        model.give_up(late);
        run(&mut model, Kind::Write(range.clone()), &[]).unwrap();
        read(&mut model, word, 0).unwrap_err();
        read(&mut model, word, value_of(late)).unwrap();
        run(&mut model, Kind::Write(range), &[]).unwrap();
        read(&mut model, word, value_of(late)).unwrap_err();
    }

    #[test]
    fn observe__additions_and_swaps_are_chains() {
        let mut model = model();
        let [first, other] = [(); 2].map(|()| {
            let kind = model.next_add(0, 0).unwrap();
            begin(&mut model, kind)
        });
        model.end(first, &Ok(vec![0])).unwrap();
        model.end(other, &Ok(vec![0])).unwrap_err();
        read(&mut model, 0, 2).unwrap_err();
        let swap = |expected| Kind::Swap { word: SWAPPED.start, expected };
        run(&mut model, swap(0), &[0]).unwrap();
        run(&mut model, swap(0), &[0]).unwrap_err();
        let last = model.last_seen(0, SWAPPED.start);
        run(&mut model, swap(7), &[last]).unwrap();
        read(&mut model, SWAPPED.start, 0).unwrap_err();
    }

    #[test]
    fn changes_during__count_writes_that_end_after_the_begin_of_the_read() {
        let mut model = model();
        run(&mut model, Kind::WriteVersioned(0), &[2]).unwrap();
        let write = begin(&mut model, Kind::WriteVersioned(0));
        let read = begin(&mut model, Kind::ReadVersioned(0));
        model.end(write, &Ok(vec![4])).unwrap();
        for index in [0, 1] {
            begin(&mut model, Kind::WriteVersioned(index));
        }
        assert_eq!(model.changes_during(model.operation(read)), 2);
    }

    #[test]
    fn end__of_operations_with_revoked_keys() {
        let mut model = model();
        let kind = || Kind::Read(vec![(0, 1)]);
        let denied = || Err(Error::new(Status::PermissionDenied, "no key"));
        let [valid, during] = [(); 2].map(|()| begin(&mut model, kind()));
        model.end(valid, &denied()).unwrap_err();
        model.revoke(0);
        model.end(during, &denied()).unwrap();
        let late = begin(&mut model, kind());
        model.end(late, &Ok(vec![0])).unwrap_err();
    }
}
