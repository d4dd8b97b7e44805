//! The execution of operations, in the event loop of an endpoint.

use std::rc::Rc;

use petrel_proto::Status;
use petrel_transport::Transport;
use petrel_transport::words::{WORD_BYTES, WordMemory, WordRange};

use super::copier::{Copier, Plan, TURN_BYTES};
use crate::control::ControlPlane;
use crate::endpoint::handle::Handle;
use crate::endpoint::{Context, Endpoint, Handled, Request};
use crate::region_memory::memory::{OUT_OF_RANGE, check_word};
use crate::region_memory::registry::{
    Entry, RegionStats, Regions, Shared, View, ViewState, find, find_to_read,
};
use crate::region_memory::wire::{
    self, COMPARE_SWAP, FETCH_ADD, Header, MAP, METHODS, READ, READ_MANY, READ_VERSIONED, Refusal,
    WRITE, WRITE_VERSIONED,
};
use crate::region_memory::{Access, Writing};
use crate::sync::Arc;
use crate::values::State;

const TOO_LARGE: Refusal =
    Refusal::new(Status::ResourceExhausted, "the response is larger than the client accepts");

/// The most bytes of a versioned value that an operation may copy in vain, and the most attempts: meanwhile the
/// endpoint serves no other request, and the client can repeat the operation.
const VAIN_BYTES_MAX: u64 = 1 << 20;
const TRIES_MAX: u64 = 64;

/// Largest response of READ whose size is not compared with the client's limit before. The answer takes only the memory of
/// the slot's former response, and the core refuses a response that the client does not accept, with an equal status.
const UNCHECKED_BYTES_MAX: usize = 1 << 10;

/// The bits of the length of a read that [`Reader`] executes itself: a number of whole words, below [`UNCHECKED_BYTES_MAX`].
const FEW_WORDS_MASK: u32 = UNCHECKED_BYTES_MAX as u32 - WORD_BYTES as u32;
const _: () = assert!(UNCHECKED_BYTES_MAX.is_power_of_two() && WORD_BYTES.is_power_of_two());

/// Largest memory that an agent keeps for versioned values.
const SCRATCH_BYTES_MAX: usize = 64 << 10;

/// Executes READ for an endpoint.
struct Reader {
    view: Arc<View>,
    copier: Rc<Copier>,
}

/// Executes the operations of another method.
struct Agent {
    view: Arc<View>,
    copier: Rc<Copier>,
    /// A versioned value, before its response has memory.
    scratch: Vec<u8>,
}

/// An operation in progress: no region is registered or revoked meanwhile.
struct Operation<'a> {
    entries: &'a [Option<Arc<Entry>>],
    stats: &'a mut RegionStats,
    shared: &'a Arc<Shared>,
    /// The largest response that the client accepts.
    response_bytes_max: u64,
}

/// The outcome of an operation: a refusal leaves the request unanswered.
type Outcome<'a> = Result<Handled, (Request<'a>, Refusal)>;

impl<S: 'static, T: Transport, C: ControlPlane<T::Link>> Endpoint<S, T, C> {
    /// Serves regions: executes the operations of clients on this endpoint's sessions (see [`region`](crate::region)).
    /// Several endpoints may serve the same regions. The methods from 65 520 to 65 527 are then taken.
    ///
    /// # Panics
    /// When one of these methods has a handler, or the endpoint serves regions already.
    pub fn serve_regions(&mut self, regions: &Regions) {
        serve(self, regions, TURN_BYTES);
    }

    /// Like [`Endpoint::serve_regions`], with a bound on the bytes that large reads copy in a turn: a simulator meets reads
    /// over many turns without large messages.
    #[doc(hidden)]
    pub fn serve_regions_in_turns(&mut self, regions: &Regions, turn_bytes: usize) {
        serve(self, regions, turn_bytes);
    }
}

/// Registers the handlers of all operations.
fn serve<S, T, C>(endpoint: &mut Endpoint<S, T, C>, regions: &Regions, turn_bytes: usize)
where
    S: 'static,
    T: Transport,
    C: ControlPlane<T::Link>,
{
    let view = Arc::new(regions.view());
    endpoint.show_regions(Arc::clone(&view));
    let copier =
        Rc::new(Copier::new(Arc::clone(&view), Rc::clone(endpoint.handle().hub()), turn_bytes));
    let reader = Reader { view: Arc::clone(&view), copier: Rc::clone(&copier) };
    endpoint.take_method(READ, reader);
    for method in METHODS.into_iter().filter(|method| *method != READ) {
        let (view, copier) = (Arc::clone(&view), Rc::clone(&copier));
        endpoint.take_method(method, Agent { view, copier, scratch: Vec::new() });
    }
    endpoint.place_method(WRITE, move |len, first| Writing::begin(&view, len, first));
}

impl Handle for Agent {
    fn handle(&mut self, _: State<'_>, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        if request.method() == WRITE
            && let Some(writing) = cx.take_placed::<Writing>()
        {
            return self.end_writing(cx, request, writing);
        }
        let mut state = self.view.lock();
        let ViewState { entries, stats } = &mut *state;
        let response_bytes_max = request.response_bytes_max(cx);
        let shared = self.view.shared();
        let mut operation = Operation { entries, stats, shared, response_bytes_max };
        let outcome = match request.method() {
            READ_MANY => operation.read_many(cx, request, &self.copier),
            READ_VERSIONED => {
                operation.read_versioned(cx, request, &self.copier, &mut self.scratch)
            }
            method => match operation.change(method, request.data()) {
                Ok(answer) => Ok(request.reply(cx, answer.bytes())),
                Err(refusal) => Err((request, refusal)),
            },
        };
        outcome.unwrap_or_else(|(request, refusal)| refuse(stats, cx, request, refusal))
    }
}

impl Handle for Reader {
    /// Executes a READ, the most frequent operation. A read of some whole words is executed here, inline and without the reasons of
    /// refusals; [`read_otherwise`] executes any other read from the beginning.
    fn handle(&mut self, _: State<'_>, cx: &mut Context<'_>, mut request: Request<'_>) -> Handled {
        let replied = request.try_reply(|request, message| {
            let header = wire::alone(request).ok()?;
            if header.len() & !FEW_WORDS_MASK != 0 {
                return None;
            }
            let mut state = self.view.try_lock()?;
            let ViewState { entries, stats } = &mut *state;
            let words = find(entries, &header, Access::READ).ok()?.memory().words();
            let len = header.len() as usize;
            if len > message.capacity() {
                return None;
            }
            message.set_len(len);
            words.try_read_words(header.offset(), message).then(|| stats.count_reads(1, len as u64))
        });
        match replied {
            Some(handled) => handled,
            // A closure here would copy the request.
            None => read_otherwise(&self.view, &self.copier, cx, request),
        }
    }
}

/// Executes a READ of other than some whole words, whose slot has no memory of a former response, or that is to be refused.
#[inline(never)]
fn read_otherwise(
    view: &View,
    copier: &Rc<Copier>,
    cx: &mut Context<'_>,
    request: Request<'_>,
) -> Handled {
    let mut state = view.lock();
    let ViewState { entries, stats } = &mut *state;
    let found = wire::alone(request.data()).and_then(|header| find_to_read(entries, &header));
    let range = match found {
        Ok(range) => range,
        Err(refusal) => return refuse(stats, cx, request, refusal),
    };
    let len = range.len();
    if len > UNCHECKED_BYTES_MAX && len as u64 > request.response_bytes_max(cx) {
        return refuse(stats, cx, request, TOO_LARGE);
    }
    if !copier.allows(cx.now().as_ns(), len) {
        let plan = Plan::of_pieces(wire::alone(request.data()).into_iter());
        return copier.defer(cx, request, plan);
    }
    request.reply_with(cx, len, |_, out| {
        range.read(out);
        stats.count_reads(1, len as u64);
        len
    })
}

/// Answers an operation that is not executed, and counts it.
#[cold]
fn refuse(
    stats: &mut RegionStats,
    cx: &mut Context<'_>,
    request: Request<'_>,
    refusal: Refusal,
) -> Handled {
    stats.refused += 1;
    request.fail(cx, refusal.status(), refusal.why())
}

impl Agent {
    /// Answers a large WRITE whose bytes are in the region already.
    #[cold]
    fn end_writing(&self, cx: &mut Context<'_>, request: Request<'_>, writing: Writing) -> Handled {
        match writing.end() {
            Ok(()) => request.reply(cx, Answer::Nothing.bytes()),
            Err(refusal) => {
                self.view.lock().stats.refused += 1;
                request.fail(cx, refusal.status(), refusal.why())
            }
        }
    }
}

/// Executes a request, and appends the answer. For tests, which have no endpoint.
#[cfg(any(test, fuzzing))]
pub(super) fn execute(
    regions: &Regions,
    method: u16,
    request: &[u8],
    answer: &mut Vec<u8>,
) -> Result<(), Status> {
    let view = regions.view();
    let mut state = view.lock();
    let ViewState { entries, stats } = &mut *state;
    let (shared, response_bytes_max) = (view.shared(), u64::MAX);
    let mut operation = Operation { entries, stats, shared, response_bytes_max };
    operation.execute(method, request, answer).map_err(|refusal| refusal.status())
}

/// Executes a WRITE whose packets of `packet_bytes` arrive in reverse order, apart from the first one. Returns `None` if the first packet
/// leaves the operation to [`execute`]. For tests, which have no endpoint.
#[cfg(any(test, fuzzing))]
pub(super) fn execute_in_packets(
    regions: &Regions,
    request: &[u8],
    packet_bytes: usize,
) -> Option<Result<(), Status>> {
    use petrel_proto::buffer::Destination;

    let view = Arc::new(regions.view());
    let packets: Vec<&[u8]> = request.chunks(packet_bytes).collect();
    let mut writing = Writing::begin(&view, request.len(), packets[0])?;
    writing.store(0, packets[0]);
    for (number, packet) in packets.iter().enumerate().skip(1).rev() {
        writing.store(number * packet_bytes, packet);
    }
    Some(writing.end().map_err(|refusal| refusal.status()))
}

impl<'s> Operation<'s> {
    #[cfg(any(test, fuzzing))]
    fn execute(
        &mut self,
        method: u16,
        request: &[u8],
        answer: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        match method {
            READ => {
                let range = self.find_to_read(&wire::alone(request)?)?;
                answer.resize(range.len(), 0);
                range.read(answer);
            }
            READ_MANY => {
                let (_, bytes) = self.check_pieces(request)?;
                answer.resize(bytes as usize, 0);
                self.copy_pieces(request, answer);
            }
            READ_VERSIONED => {
                let header = self.check_versioned(request)?;
                self.copy_versioned(&header, answer)?;
            }
            method => answer.extend_from_slice(self.change(method, request)?.bytes()),
        }
        Ok(())
    }

    /// Returns the region of a request whose key grants the rights.
    #[inline]
    fn find(&self, header: &Header, rights: Access) -> Result<&'s Entry, Refusal> {
        find(self.entries, header, rights)
    }

    fn find_to_read(&self, header: &Header) -> Result<WordRange<'s>, Refusal> {
        find_to_read(self.entries, header)
    }

    /// Checks the size of a response before memory is taken for it.
    #[inline]
    fn check_response(&self, bytes: u64) -> Result<(), Refusal> {
        if bytes <= self.response_bytes_max { Ok(()) } else { Err(TOO_LARGE) }
    }

    fn read_many<'a>(
        &mut self,
        cx: &mut Context<'_>,
        request: Request<'a>,
        copier: &Rc<Copier>,
    ) -> Outcome<'a> {
        let (count, bytes) = match self.check_pieces(request.data()) {
            Ok(checked) => checked,
            Err(refusal) => return Err((request, refusal)),
        };
        if !copier.allows(cx.now().as_ns(), bytes as usize) {
            let plan = Plan::of_pieces(wire::pieces(request.data()).into_iter().flatten());
            return Ok(copier.defer(cx, request, plan));
        }
        Ok(request.reply_with(cx, bytes as usize, |request, out| {
            self.copy_pieces(request, out);
            self.stats.count_reads(count, bytes);
            bytes as usize
        }))
    }

    /// Copies the pieces of a checked request out, one after the other.
    fn copy_pieces(&self, request: &[u8], mut out: &mut [u8]) {
        for header in wire::pieces(request).into_iter().flatten() {
            let (piece, rest) = out.split_at_mut(header.len() as usize);
            self.find_to_read(&header).expect("every piece was checked").read(piece);
            out = rest;
        }
        assert!(out.is_empty(), "the pieces fill the answer");
    }

    /// Checks a request for several pieces; returns the number of pieces and their bytes.
    fn check_pieces(&self, request: &[u8]) -> Result<(u64, u64), Refusal> {
        let (mut count, mut bytes) = (0, 0);
        for header in wire::pieces(request)? {
            self.find_to_read(&header)?;
            count += 1;
            bytes += u64::from(header.len());
        }
        self.check_response(bytes)?;
        Ok((count, bytes))
    }

    fn read_versioned<'a>(
        &mut self,
        cx: &mut Context<'_>,
        request: Request<'a>,
        copier: &Rc<Copier>,
        scratch: &mut Vec<u8>,
    ) -> Outcome<'a> {
        let header = match self.check_versioned(request.data()) {
            Ok(header) => header,
            Err(refusal) => return Err((request, refusal)),
        };
        if !copier.allows(cx.now().as_ns(), header.len() as usize) {
            return Ok(copier.defer(cx, request, Plan::of_versioned(header)));
        }
        let outcome = match self.copy_versioned(&header, scratch) {
            Ok(()) => Ok(request.reply(cx, scratch)),
            Err(refusal) => Err((request, refusal)),
        };
        scratch.shrink_to(SCRATCH_BYTES_MAX);
        outcome
    }

    fn check_versioned(&self, request: &[u8]) -> Result<Header, Refusal> {
        let header = wire::alone(request)?;
        let memory = self.find(&header, Access::READ)?.memory();
        check_value(memory.words(), header.offset(), header.len().into())?;
        self.check_response(WORD_BYTES + u64::from(header.len()))?;
        Ok(header)
    }

    /// Copies a checked versioned value behind its version.
    fn copy_versioned(&mut self, header: &Header, to: &mut Vec<u8>) -> Result<(), Refusal> {
        let memory = self.find(header, Access::READ)?.memory();
        to.clear();
        to.resize(WORD_BYTES as usize + header.len() as usize, 0);
        let (version, value) = to.split_at_mut(WORD_BYTES as usize);
        version.copy_from_slice(
            &memory
                .try_read_versioned(header.offset(), value, tries(header.len().into()))?
                .to_le_bytes(),
        );
        self.stats.count_reads(1, header.len().into());
        Ok(())
    }

    /// Executes an operation with a short response.
    fn change(&mut self, method: u16, request: &[u8]) -> Result<Answer, Refusal> {
        match method {
            WRITE => self.write(request),
            WRITE_VERSIONED => self.write_versioned(request),
            COMPARE_SWAP => {
                let (header, [expected, new]) = wire::with_words(request)?;
                let entry = self.find_word(&header)?;
                let former = entry.memory().words().compare_swap(header.offset(), expected, new);
                Ok(Answer::Word(former.to_le_bytes()))
            }
            FETCH_ADD => {
                let (header, [delta]) = wire::with_words(request)?;
                let entry = self.find_word(&header)?;
                let former = entry.memory().words().fetch_add(header.offset(), delta);
                Ok(Answer::Word(former.to_le_bytes()))
            }
            MAP => self.map(request),
            _ => unreachable!("the agent is registered for its own methods alone"),
        }
    }

    fn write(&mut self, request: &[u8]) -> Result<Answer, Refusal> {
        let (header, data) = wire::with_data(request)?;
        let words = self.find(&header, Access::WRITE)?.memory().words();
        if !words.contains(header.offset(), data.len() as u64) {
            return Err(OUT_OF_RANGE);
        }
        words.write(header.offset(), data);
        self.count_write(data);
        Ok(Answer::Nothing)
    }

    fn write_versioned(&mut self, request: &[u8]) -> Result<Answer, Refusal> {
        let (header, data) = wire::with_data(request)?;
        let memory = self.find(&header, Access::WRITE)?.memory();
        check_value(memory.words(), header.offset(), data.len() as u64)?;
        let version = memory.try_write_versioned(header.offset(), data, tries(0))?;
        self.count_write(data);
        Ok(Answer::Word(version.to_le_bytes()))
    }

    /// Returns the region of an operation on a word, which is counted.
    fn find_word(&mut self, header: &Header) -> Result<&'s Entry, Refusal> {
        let entry = self.find(header, Access::ATOMIC)?;
        check_word(entry.memory().words(), header.offset())?;
        self.stats.atomics += 1;
        Ok(entry)
    }

    /// Returns the name of the socket at which a process of this host gets the memory.
    fn map(&self, request: &[u8]) -> Result<Answer, Refusal> {
        let header = wire::whole(request)?;
        self.find(&header, Access::MAP)?;
        let text = "the server has no descriptor or thread for mappings";
        let name = self.shared.door_name();
        name.map(Answer::Name).map_err(|_| Refusal::new(Status::ResourceExhausted, text))
    }

    fn count_write(&mut self, data: &[u8]) {
        self.stats.writes += 1;
        self.stats.bytes_written += data.len() as u64;
    }
}

/// The response of an operation, apart from read bytes.
enum Answer {
    Nothing,
    Word([u8; 8]),
    Name(Vec<u8>),
}

impl Answer {
    fn bytes(&self) -> &[u8] {
        match self {
            Answer::Nothing => &[],
            Answer::Word(word) => word,
            Answer::Name(name) => name,
        }
    }
}

/// Returns the attempts at a versioned value, by the bytes that each copies.
fn tries(bytes: u64) -> u32 {
    (VAIN_BYTES_MAX / bytes.max(1)).clamp(1, TRIES_MAX) as u32
}

/// Checks the place of a versioned value.
fn check_value(words: &WordMemory, offset: u64, len: u64) -> Result<(), Refusal> {
    check_word(words, offset)?;
    if words.contains(offset + WORD_BYTES, len) { Ok(()) } else { Err(OUT_OF_RANGE) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region_memory::memory::RegionMemory;
    use crate::region_memory::registry::Region;

    fn region(access: Access) -> (Regions, Region) {
        let regions = Regions::new();
        let region = regions.register(RegionMemory::private(100).unwrap(), access).unwrap();
        (regions, region)
    }

    /// Returns why an operation of one request is refused.
    fn refusal(regions: &Regions, method: u16, request: &[u8]) -> Option<Status> {
        execute(regions, method, request, &mut Vec::new()).err()
    }

    fn request(region: &Region, method: u16, offset: u64, len: u32) -> Vec<u8> {
        let reads = [READ, READ_MANY, READ_VERSIONED].contains(&method);
        let header = Header::new(region.key(), offset, if reads { len } else { 0 });
        let data = match method {
            WRITE | WRITE_VERSIONED => len as usize,
            COMPARE_SWAP => 16,
            FETCH_ADD => 8,
            _ => 0,
        };
        // An even byte: versions that a write leaves behind are even.
        header.followed_by(&vec![6; data])
    }

    #[test]
    fn find__refuses_wrong_secrets_and_numbers() {
        let all = Access::READ | Access::WRITE | Access::ATOMIC;
        let (regions, region) = region(all);
        for method in METHODS.into_iter().filter(|method| *method != MAP) {
            let right = request(&region, method, 8, 16);
            assert_eq!(refusal(&regions, method, &right), None, "{method}");
            for byte in (0..4).chain(8..16) {
                let mut wrong = right.clone();
                wrong[byte] ^= 0x80;
                let status = refusal(&regions, method, &wrong);
                assert_eq!(status, Some(Status::PermissionDenied), "{method}, byte {byte}");
            }
        }
    }

    #[test]
    fn find__refuses_operations_without_a_right() {
        for (granted, allowed) in [
            (Access::READ, vec![READ, READ_MANY, READ_VERSIONED]),
            (Access::WRITE, vec![WRITE, WRITE_VERSIONED]),
            (Access::ATOMIC, vec![COMPARE_SWAP, FETCH_ADD]),
        ] {
            let (regions, region) = region(granted);
            for method in METHODS {
                let expected = (!allowed.contains(&method)).then_some(Status::PermissionDenied);
                let status = refusal(&regions, method, &request(&region, method, 0, 8));
                assert_eq!(status, expected, "{granted:?}, {method}");
            }
        }
    }

    #[test]
    fn operations__beyond_the_end_are_refused_and_change_nothing() {
        let (regions, region) = region(Access::READ | Access::WRITE | Access::ATOMIC);
        for (method, offset, len) in [
            (READ, 93, 8),
            (READ, u64::MAX, 1),
            (READ, 0, 101),
            (READ_MANY, 101, 0),
            (WRITE, 93, 8),
            (WRITE, u64::MAX - 3, 8),
            (COMPARE_SWAP, 96, 0),
            (FETCH_ADD, u64::MAX - 7, 0),
            (READ_VERSIONED, 88, 5),
            (WRITE_VERSIONED, 88, 5),
            (WRITE_VERSIONED, 96, 0),
        ] {
            let status = refusal(&regions, method, &request(&region, method, offset, len));
            assert_eq!(status, Some(Status::OutOfRange), "{method} at {offset}");
        }
        for method in [COMPARE_SWAP, FETCH_ADD, READ_VERSIONED, WRITE_VERSIONED] {
            let status = refusal(&regions, method, &request(&region, method, 4, 8));
            assert_eq!(status, Some(Status::InvalidArgument), "{method} between words");
        }
        let mut all = [1; 100];
        region.read(0, &mut all).unwrap();
        assert_eq!(all, [0; 100]);
    }

    #[test]
    fn execute__does_what_the_operation_says() {
        let (regions, region) = region(Access::READ | Access::WRITE | Access::ATOMIC);
        let run = |method, header: Header, data: &[u8]| {
            let mut answer = Vec::new();
            execute(&regions, method, &header.followed_by(data), &mut answer).unwrap();
            answer
        };
        let at = |offset| Header::new(region.key(), offset, 0);
        assert_eq!(run(WRITE, at(3), b"abc"), b"");
        assert_eq!(run(FETCH_ADD, at(16), &5_u64.to_le_bytes()), 0_u64.to_le_bytes());
        let swap = |expected: u64, new: u64| [expected.to_le_bytes(), new.to_le_bytes()].concat();
        assert_eq!(run(COMPARE_SWAP, at(16), &swap(4, 9)), 5_u64.to_le_bytes());
        assert_eq!(run(COMPARE_SWAP, at(16), &swap(5, 9)), 5_u64.to_le_bytes());
        assert_eq!(region.load(16).unwrap(), 9);
        assert_eq!(run(WRITE_VERSIONED, at(24), b"value"), 2_u64.to_le_bytes());
        let value = run(READ_VERSIONED, Header::new(region.key(), 24, 5), b"");
        assert_eq!(value, [&2_u64.to_le_bytes()[..], b"value"].concat());
        let stats = regions.stats();
        assert_eq!((stats.writes, stats.bytes_written, stats.atomics), (2, 8, 3));
    }
}
