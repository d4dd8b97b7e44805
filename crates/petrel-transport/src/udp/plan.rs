//! What to send, before any system call: frames into datagrams, datagrams into messages.
//!
//! 1. The frames of a burst are taken peer by peer, in order. Small ones that follow one another
//!    are copied into a bundle of up to the peer's largest datagram; a frame that would be alone,
//!    or a large one, goes bare and is sent from where it lies.
//! 2. Datagrams of one peer that follow one another and have the same size make one message for
//!    segmentation offload (its last datagram may be shorter). Without offload each datagram is a
//!    message.
//!
//! A message is what one entry of `sendmmsg` carries, and succeeds or fails as a whole.

use crate::bundle;
use crate::transport::{PeerId, TX_BURST_MAX, TxFrame};

/// Frames up to this size are worth a copy to share a datagram: it costs some 30 ns in cache, and
/// a datagram of its own costs a trip through the network stack, or a packet on the wire.
const SMALL_FRAME_BYTES_MAX: usize = 2048;

/// Room for the bundles of a burst: each frame with its length, and a mark for each at worst.
const STAGING_BYTES: usize =
    TX_BURST_MAX * (bundle::MARK_BYTES + bundle::record_bytes(SMALL_FRAME_BYTES_MAX));

/// Most datagrams in one message: the kernel's `UDP_MAX_SEGMENTS`, which Linux 6.9 doubled.
const SEGMENTS_MAX: usize = 64;

const _: () = assert!(TX_BURST_MAX <= SEGMENTS_MAX);

/// Where the bytes of a datagram lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A bundle, from this offset of the staging area on.
    Staged(usize),
    /// The frame with this index, as its owner laid it out.
    Frame(usize),
}

/// A datagram to send. Frames are sets of indices as in the burst's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Datagram {
    pub(super) source: Source,
    pub(super) bytes: usize,
    pub(super) frames: u64,
}

/// Consecutive datagrams of one peer in one entry of `sendmmsg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) peer: PeerId,
    pub(super) first_datagram: usize,
    pub(super) datagram_count: usize,
}

/// The plan for one burst. Its memory is reused for the next.
pub(super) struct Plan {
    staging: Box<[u8]>,
    staged_bytes: usize,
    datagrams: Vec<Datagram>,
    messages: Vec<Message>,
}

/// The indices in a set, ascending.
pub(super) fn indices(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let index = set.trailing_zeros() as usize;
        set &= set.wrapping_sub(1);
        (index < 64).then_some(index)
    })
}

impl Plan {
    pub(super) fn new() -> Self {
        Self {
            staging: vec![0; STAGING_BYTES].into(),
            staged_bytes: 0,
            datagrams: Vec::with_capacity(TX_BURST_MAX),
            messages: Vec::with_capacity(TX_BURST_MAX),
        }
    }

    pub(super) fn messages(&self) -> &[Message] {
        &self.messages
    }

    pub(super) fn datagrams_of(&self, message: &Message) -> &[Datagram] {
        &self.datagrams[message.first_datagram..][..message.datagram_count]
    }

    /// The bundle that begins at this offset.
    pub(super) fn staged(&self, start: usize, bytes: usize) -> &[u8] {
        &self.staging[start..][..bytes]
    }

    /// The frames that travel in a message.
    pub(super) fn frames_of(&self, message: &Message) -> u64 {
        self.datagrams_of(message).iter().fold(0, |set, datagram| set | datagram.frames)
    }

    pub(super) fn clear(&mut self) {
        self.staged_bytes = 0;
        self.datagrams.clear();
        self.messages.clear();
    }

    /// Plans the frames of `set`, all to `peer`, whose datagrams hold up to `datagram_bytes_max`;
    /// so does each of the frames. A message carries up to `message_bytes_max`, or one datagram.
    pub(super) fn add(
        &mut self,
        peer: PeerId,
        frames: &[TxFrame<'_>],
        mut set: u64,
        datagram_bytes_max: usize,
        message_bytes_max: usize,
    ) {
        let first_datagram = self.datagrams.len();
        while set != 0 {
            let run = bundle_run(frames, set, datagram_bytes_max);
            let datagram =
                if run.is_power_of_two() { bare(frames, run) } else { self.stage(frames, run) };
            self.datagrams.push(datagram);
            set &= !run;
        }
        self.group(peer, first_datagram, message_bytes_max);
    }

    /// Copies the frames of `run` into a bundle.
    fn stage(&mut self, frames: &[TxFrame<'_>], run: u64) -> Datagram {
        let start = self.staged_bytes;
        let buffer = &mut self.staging[start..];
        let bytes = indices(run).fold(bundle::begin(buffer), |used, index| {
            bundle::append(buffer, used, frames[index].head, frames[index].body)
        });
        self.staged_bytes += bytes;
        Datagram { source: Source::Staged(start), bytes, frames: run }
    }

    /// Makes messages of the datagrams from `at` on.
    fn group(&mut self, peer: PeerId, mut at: usize, message_bytes_max: usize) {
        while at < self.datagrams.len() {
            let datagram_count = segment_run(&self.datagrams[at..], message_bytes_max);
            self.messages.push(Message { peer, first_datagram: at, datagram_count });
            at += datagram_count;
        }
    }

    /// Takes the messages from `first` on apart, for a kernel that does not segment after all.
    pub(super) fn ungroup(&mut self, first: usize) {
        let grouped: [Option<Message>; TX_BURST_MAX] =
            std::array::from_fn(|index| self.messages.get(first + index).copied());
        self.messages.truncate(first);
        for message in grouped.into_iter().flatten() {
            for offset in 0..message.datagram_count {
                let first_datagram = message.first_datagram + offset;
                self.messages.push(Message { first_datagram, datagram_count: 1, ..message });
            }
        }
    }
}

/// The longest run of frames from the first of `set` on that fits into one bundle; at least one.
fn bundle_run(frames: &[TxFrame<'_>], set: u64, datagram_bytes_max: usize) -> u64 {
    let mut bytes = bundle::MARK_BYTES;
    let mut run = set & set.wrapping_neg();
    for index in indices(set) {
        let frame_bytes = frames[index].len();
        bytes += bundle::record_bytes(frame_bytes);
        if frame_bytes > SMALL_FRAME_BYTES_MAX || bytes > datagram_bytes_max {
            break;
        }
        run |= 1 << index;
    }
    run
}

/// The single frame of `run`, alone in its datagram.
fn bare(frames: &[TxFrame<'_>], run: u64) -> Datagram {
    let index = run.trailing_zeros() as usize;
    let frame = &frames[index];
    debug_assert_ne!(frame.head[0], bundle::BUNDLE_MARK, "no frame begins like a bundle");
    Datagram { source: Source::Frame(index), bytes: frame.len(), frames: run }
}

/// How many of these datagrams go in one message: all of one size, but the last may be shorter.
fn segment_run(datagrams: &[Datagram], message_bytes_max: usize) -> usize {
    let segment_bytes = datagrams[0].bytes;
    let mut total_bytes = segment_bytes;
    for (count, datagram) in datagrams.iter().enumerate().skip(1) {
        total_bytes += datagram.bytes;
        if datagram.bytes > segment_bytes || total_bytes > message_bytes_max {
            return count;
        }
        if datagram.bytes < segment_bytes {
            return count + 1;
        }
    }
    datagrams.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const PEER: PeerId = PeerId(3);

    fn frame(bytes: &[u8]) -> TxFrame<'_> {
        let (head, body) = bytes.split_at(bytes.len().min(16));
        TxFrame { peer: PEER, head, body }
    }

    fn bytes_of(plan: &Plan, frames: &[TxFrame<'_>], datagram: &Datagram) -> Vec<u8> {
        match datagram.source {
            Source::Staged(start) => plan.staged(start, datagram.bytes).to_vec(),
            Source::Frame(index) => [frames[index].head, frames[index].body].concat(),
        }
    }

    fn plan(sizes: &[usize], datagram_bytes_max: usize, message_bytes_max: usize) -> Plan {
        let bytes = vec![0x10; 70_000];
        let frames: Vec<_> = sizes.iter().map(|&size| frame(&bytes[..size])).collect();
        let mut plan = Plan::new();
        plan.add(PEER, &frames, set_of(sizes.len()), datagram_bytes_max, message_bytes_max);
        plan
    }

    fn set_of(count: usize) -> u64 {
        (0..count).fold(0, |set, index| set | 1 << index)
    }

    fn shape(plan: &Plan) -> Vec<Vec<usize>> {
        let sizes = |message| plan.datagrams_of(message).iter().map(|d| d.bytes).collect();
        plan.messages().iter().map(sizes).collect()
    }

    #[test]
    fn add__bundles_small_frames_and_leaves_a_single_one_bare() {
        assert_eq!(shape(&plan(&[40], 1232, 65_507)), [[40]]);
        assert_eq!(shape(&plan(&[40, 50, 60], 1232, 65_507)), [[1 + 42 + 52 + 62]]);
        assert_eq!(shape(&plan(&[40, 1232, 60], 1232, 65_507)), [vec![40], vec![1232, 60]]);
        assert_eq!(shape(&plan(&[600, 627], 1232, 65_507)), [[1232]]);
        assert_eq!(shape(&plan(&[600, 628], 1232, 0)), [[600], [628]]);
    }

    #[test]
    fn add__groups_equal_datagrams_with_a_shorter_last_one() {
        let grouped = plan(&[3000, 3000, 3000, 2900, 3000], 3000, 65_507);
        assert_eq!(shape(&grouped), [vec![3000, 3000, 3000, 2900], vec![3000]]);
        let single = plan(&[3000, 3000, 3000], 3000, 0);
        assert_eq!(shape(&single), [[3000], [3000], [3000]]);
        let limited = plan(&[3000; 5], 3000, 6000);
        assert_eq!(shape(&limited), [vec![3000, 3000], vec![3000, 3000], vec![3000]]);
        let growing = plan(&[3000, 4000, 5000], 5000, 65_507);
        assert_eq!(shape(&growing), [[3000], [4000], [5000]]);
    }

    #[test]
    fn ungroup__leaves_what_was_sent() {
        let mut plan = plan(&[3000, 3000, 4000, 4000, 3900], 4000, 65_507);
        assert_eq!(shape(&plan), [vec![3000, 3000], vec![4000, 4000, 3900]]);
        plan.ungroup(1);
        assert_eq!(shape(&plan), [vec![3000, 3000], vec![4000], vec![4000], vec![3900]]);
        assert_eq!(plan.frames_of(&plan.messages()[3]), 1 << 4);
    }

    #[test]
    fn indices__are_those_set() {
        assert_eq!(indices(0).count(), 0);
        assert_eq!(indices(1 << 63 | 0b101).collect::<Vec<_>>(), [0, 2, 63]);
        assert_eq!(indices(u64::MAX).count(), 64);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 8 } else { 256 }))]

        /// The receiver's parser gives back all frames, in order, whatever the plan was.
        #[test]
        fn add__loses_nothing_and_keeps_order(
            sizes in vec(prop_oneof![1..100usize, 1..1233usize, 1..9000usize], 1..=64),
            limit in 9000..65_508usize,
            gso: bool,
        ) {
            let contents: Vec<Vec<u8>> =
                sizes.iter().zip(0x10u8..).map(|(&size, fill)| vec![fill; size]).collect();
            let frames: Vec<_> = contents.iter().map(|bytes| frame(bytes)).collect();
            let mut plan = Plan::new();
            for _ in 0..2 {
                plan.clear();
                plan.add(PEER, &frames, set_of(frames.len()), limit, if gso { 65_507 } else { 0 });
            }
            let mut got = Vec::new();
            for message in plan.messages() {
                let datagrams = plan.datagrams_of(message);
                prop_assert!(gso || datagrams.len() == 1);
                prop_assert!(datagrams.len() == 1 || datagrams.iter().map(|d| d.bytes).sum::<usize>() <= 65_507);
                let (last, full) = datagrams.split_last().unwrap();
                prop_assert!(full.iter().all(|d| d.bytes == datagrams[0].bytes));
                prop_assert!(last.bytes <= datagrams[0].bytes && datagrams[0].bytes <= limit);
                for datagram in datagrams {
                    let bytes = bytes_of(&plan, &frames, datagram);
                    got.extend(bundle::frames(&bytes).unwrap().map(<[u8]>::to_vec));
                }
            }
            prop_assert_eq!(&got, &contents);
            let all = plan.messages().iter().fold(0, |set, message| set | plan.frames_of(message));
            prop_assert_eq!(all, set_of(frames.len()));
        }
    }
}
