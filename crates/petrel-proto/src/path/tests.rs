//! Policies on paths that behave well, badly, and at random.

use proptest::prelude::*;

use super::*;

const US: u64 = 1_000;
const GOOD: Answer = Answer { rtt_ns: Some(12 * US), is_marked: false, behind_packets: 0 };
const MARKED: Answer = Answer { is_marked: true, ..GOOD };
const LATE: Answer = Answer { behind_packets: 200, ..GOOD };

fn paths(policy: PathPolicy) -> Paths {
    Paths::new(policy, 8, 128, 5)
}

/// Sends new packets until the window is full, and returns their paths.
fn fill(paths: &mut Paths, now_ns: u64) -> Vec<PathId> {
    let mut sent = Vec::new();
    while let Some(path) = paths.choose(now_ns) {
        assert_eq!(paths.choose(now_ns), Some(path), "the choice stays until it is used");
        paths.note_new(path);
        sent.push(path);
    }
    sent
}

/// One round trip: all packets in flight get the answer that `answer` gives for their path, `None` for a loss.
fn round(
    paths: &mut Paths,
    sent: &[PathId],
    now_ns: u64,
    answer: impl Fn(PathId) -> Option<Answer>,
) -> Vec<PathId> {
    let mut next = Vec::new();
    for path in sent {
        match answer(*path) {
            Some(answer) => paths.note_answer(now_ns, *path, answer),
            None => paths.note_lost(now_ns, *path),
        }
        next.extend(fill(paths, now_ns));
    }
    next
}

/// Runs round trips of 12 µs, and returns the packets on each path in the last one.
fn run(
    paths: &mut Paths,
    rounds: std::ops::Range<u64>,
    answer: impl Fn(PathId) -> Option<Answer>,
) -> Vec<usize> {
    let mut sent = fill(paths, rounds.start * 12 * US);
    for at in rounds {
        sent = round(paths, &sent, (at + 1) * 12 * US, &answer);
    }
    sent.iter().for_each(|path| paths.note_unknown(*path));
    (0..8).map(|index| sent.iter().filter(|path| path.index() == index).count()).collect()
}

#[test]
fn choose__single_is_the_first_path_and_plb_one_path() {
    assert_eq!(run(&mut paths(PathPolicy::Single), 0..30, |_| Some(GOOD))[1..], [0; 7]);
    let of_plb = run(&mut paths(PathPolicy::Plb), 0..30, |_| Some(GOOD));
    assert_eq!(of_plb.iter().filter(|count| **count > 0).count(), 1, "{of_plb:?}");
}

#[test]
fn choose__every_spreading_policy_uses_every_path() {
    for policy in [PathPolicy::Coupled, PathPolicy::MpRdma(Disorder::WINDOW)] {
        let used = run(&mut paths(policy), 0..30, |_| Some(GOOD));
        assert!(used.iter().all(|count| *count > 3), "{policy:?}: {used:?}");
    }
}

#[test]
fn choose__no_more_packets_than_allowed() {
    for policy in PathPolicy::ALL {
        let used: usize = run(&mut paths(policy), 0..300, |_| Some(GOOD)).iter().sum();
        assert_eq!(used, 128, "{policy:?}");
    }
}

#[test]
fn note_lost__a_path_that_drops_everything_is_left() {
    let mut paths = paths(PathPolicy::Coupled);
    let used = run(&mut paths, 0..100, |path| (path.index() != 3).then_some(GOOD));
    assert!(used[3] <= 1, "{used:?}");
    assert!(used.iter().sum::<usize>() > 90, "{used:?}");
}

#[test]
fn note_answer__a_path_that_returned_is_used_again() {
    let mut paths = paths(PathPolicy::Coupled);
    let is_cut = |path: PathId| path.index() < 2;
    run(&mut paths, 0..1_000, |path| (!is_cut(path)).then_some(GOOD));
    assert!(!paths.is_open(PathId(0)) && !paths.is_open(PathId(1)));
    // Within 10 ms, as the looks are at most 3.2 ms apart.
    let used = run(&mut paths, 1_000..1_800, |_| Some(GOOD));
    // The sum is at its largest: the paths have the packet that they were opened with.
    assert!(used[0] >= 1 && used[1] >= 1, "{used:?}");
}

#[test]
fn note_answer__coupled_leaves_a_marked_path_to_others_but_not_wholly() {
    let used = run(&mut paths(PathPolicy::Coupled), 0..200, |path| {
        Some(if path.index() == 6 { MARKED } else { GOOD })
    });
    assert!(used[6] <= 1 && used.iter().sum::<usize>() > 100, "{used:?}");
}

#[test]
fn note_answer__late_answers_close_a_slow_path() {
    let used = run(&mut paths(PathPolicy::Coupled), 0..200, |path| {
        Some(if path.index() == 1 { LATE } else { GOOD })
    });
    assert!(used[1] <= 1, "{used:?}");
    // MP-RDMA's path gets only the packets that look for new paths.
    let used = run(&mut paths(PathPolicy::MpRdma(Disorder::WINDOW)), 0..200, |path| {
        Some(if path.index() == 1 { LATE } else { GOOD })
    });
    assert!(used[1] <= 6, "{used:?}");
}

/// A closed path whose answers are marked does not keep other closed paths from being looked at.
#[test]
fn note_answer__a_marked_look_leaves_turns_to_other_closed_paths() {
    let mut paths = paths(PathPolicy::Coupled);
    run(&mut paths, 0..1_000, |path| (path.index() > 1).then_some(GOOD));
    assert!(!paths.is_open(PathId(0)) && !paths.is_open(PathId(1)));
    run(&mut paths, 1_000..3_000, |path| Some(if path.index() == 0 { MARKED } else { GOOD }));
    assert!(!paths.is_open(PathId(0)) && paths.is_open(PathId(1)));
}

/// Looks are more easily late than packets on open paths.
#[test]
fn note_answer__a_look_is_late_from_half_of_the_limit() {
    let mut paths = paths(PathPolicy::Coupled);
    for (behind_packets, is_open) in [(65, false), (64, true)] {
        if paths.is_open(PathId(2)) {
            paths.set.close(0, PathId(2));
        }
        paths.note_repeat(PathId(2));
        paths.note_answer(0, PathId(2), Answer { behind_packets, ..GOOD });
        assert_eq!(paths.is_open(PathId(2)), is_open);
    }
}

#[test]
fn note_lost__losses_on_all_paths_move_no_window() {
    let mut paths = paths(PathPolicy::Coupled);
    let mut count = 0u32;
    let mut sent = fill(&mut paths, 0);
    for at in 1..2_000 {
        let mut next = Vec::new();
        for path in &sent {
            count += 1;
            // Every hundredth packet, on whichever path it is.
            if count.is_multiple_of(100) {
                paths.note_lost(at * 12 * US, *path);
            } else {
                paths.note_answer(at * 12 * US, *path, GOOD);
            }
            next.extend(fill(&mut paths, at * 12 * US));
        }
        sent = next;
    }
    assert!(sent.len() > 100, "{}", sent.len());
    assert!((0..8).all(|index| paths.is_open(PathId(index))));
}

#[test]
fn note_timeout__plb_takes_another_path() {
    let mut paths = paths(PathPolicy::Plb);
    let sent = fill(&mut paths, 0);
    let before = sent[0];
    paths.note_answer(12 * US, before, GOOD);
    paths.note_timeout(150 * US, before);
    let after = paths.choose_again(150 * US, before);
    assert_ne!(after, Some(before));
    // Packets that were on the former path say nothing about the present one.
    paths.note_timeout(150 * US, before);
    assert_eq!(paths.choose_again(150 * US, before), after);
}

#[test]
fn note_answer__plb_leaves_a_path_after_three_marked_rounds() {
    let mut paths = paths(PathPolicy::Plb);
    let first = paths.choose(0).unwrap();
    let mut rounds = 0;
    for round in 1..10 {
        let path = paths.choose(round * 20 * US).unwrap();
        if path != first {
            break;
        }
        paths.note_new(path);
        paths.note_answer(round * 20 * US, path, MARKED);
        rounds += 1;
    }
    assert_eq!(rounds, 3);
}

#[test]
fn lead_ns__grows_with_false_alarms_and_falls_with_answers() {
    let mut paths = paths(PathPolicy::Coupled);
    assert_eq!((paths.lead_ns(PathId(0)), paths.rtt_least_ns()), (None, 0));
    let sent = fill(&mut paths, 0);
    paths.note_answer(12 * US, sent[0], GOOD);
    // A path that was not measured has the longest round trip, and a deviation of a round trip.
    assert_eq!((paths.lead_ns(PathId(5)), paths.rtt_least_ns()), (Some(25 * US), 12 * US));
    paths.note_false_alarm();
    assert_eq!(paths.lead_ns(PathId(5)), Some(26 * US));
    (0..20).for_each(|_| paths.note_false_alarm());
    assert_eq!(paths.lead_ns(PathId(5)), Some((25 + 4 * 12) * US));
    let mut sent = sent[1..].to_vec();
    for at in 2..200 {
        sent = round(&mut paths, &sent, at * 12 * US, |_| Some(GOOD));
    }
    assert!(paths.lead_ns(PathId(5)).unwrap() < 10 * US);
}

/// A path that is slower than the fastest one gets the difference.
#[test]
fn lead_ns__is_longer_for_a_slower_path() {
    let mut paths = paths(PathPolicy::Coupled);
    let mut sent = fill(&mut paths, 0);
    for at in 1..200 {
        let slower = |path: PathId| Answer {
            rtt_ns: Some(if path.index() == 3 { 50 } else { 10 } * US),
            ..GOOD
        };
        sent = round(&mut paths, &sent, at * 50 * US, |path| Some(slower(path)));
    }
    // Half of a round trip, the difference, and the margin of 1 µs.
    for (path, lead_us) in [(2, 6), (3, 66)] {
        let lead_ns = paths.lead_ns(PathId(path)).unwrap();
        assert!((lead_us * US).abs_diff(lead_ns) < US / 10, "{path}: {lead_ns}");
    }
}

/// Short messages of a burst leave together, and the next burst takes its own path.
#[test]
fn choose_alone__keeps_to_one_path_for_a_burst_while_it_has_room() {
    let mut several = paths(PathPolicy::Coupled);
    let mut burst = |now_ns, count| {
        let sent = (0..count).map(|_| {
            let path = several.choose_alone(now_ns).expect("the window has room");
            let again = several.choose_alone(now_ns);
            assert_eq!(again, Some(path), "the choice stays until it is used");
            several.note_new(path);
            path
        });
        sent.collect::<Vec<_>>()
    };
    // Each of eight paths has a window of four packets.
    let first = burst(US, 4);
    assert!(first.iter().all(|path| *path == first[0]), "{first:?}");
    let mut used: Vec<PathId> = (2..10).flat_map(|at| burst(at * US, 2)).collect();
    assert!(used.chunks(2).all(|pair| pair[0] == pair[1]), "{used:?}");
    used.dedup();
    assert!(used.len() > 3, "{used:?}");
    let mut paths = paths(PathPolicy::Coupled);
    let sent: Vec<PathId> = std::iter::from_fn(|| {
        let path = paths.choose_alone(US)?;
        paths.note_new(path);
        Some(path)
    })
    .collect();
    assert_eq!(sent.len(), 32, "a burst may use all windows");
    assert!(sent.chunks(4).all(|four| four.iter().all(|path| *path == four[0])), "{sent:?}");
}

#[test]
fn path_id__of_32_ports() {
    assert_eq!(PathId::new(31).map(PathId::index), Some(31));
    assert_eq!(PathId::new(32), None);
    let names: std::collections::BTreeSet<_> = PathPolicy::ALL.iter().map(|p| p.name()).collect();
    assert_eq!(names.len(), PathPolicy::ALL.len());
    assert_eq!(PathPolicy::default(), PathPolicy::Single);
}

/// A session of MP-RDMA with all of its first window in flight, after a first answer.
fn mp_rdma(disorder: Disorder) -> (Paths, Vec<PathId>) {
    let mut paths = paths(PathPolicy::MpRdma(disorder));
    let sent = fill(&mut paths, 0);
    assert_eq!(sent.len(), 32);
    (paths, sent)
}

#[test]
fn choose_again__mp_rdma_waits_for_an_answer_and_takes_its_path() {
    let (mut paths, sent) = mp_rdma(Disorder::WINDOW);
    paths.note_answer(12 * US, sent[0], GOOD);
    let _ = fill(&mut paths, 12 * US);
    paths.note_lost(13 * US, sent[1]);
    assert_eq!(paths.choose(13 * US), None, "a loss clocks nothing out");
    assert_eq!(paths.choose_again(13 * US, sent[1]), None);
    paths.note_answer(14 * US, sent[2], GOOD);
    assert_eq!(paths.choose_again(14 * US, sent[1]), Some(sent[2]));
    paths.note_repeat(sent[2]);
    // The answer to the repetition clocks a packet out on the same path.
    let _ = fill(&mut paths, 14 * US);
    paths.note_repeat_answer(26 * US, sent[2], false);
    assert_eq!(paths.choose(26 * US), Some(sent[2]));
}

/// After half a round trip without an answer, new packets and repetitions leave; losses in between do not put this off.
#[test]
fn resume_ns__losses_do_not_move_the_burst_timer() {
    let (mut paths, sent) = mp_rdma(Disorder::WINDOW);
    paths.note_answer(12 * US, sent[0], GOOD);
    let _ = fill(&mut paths, 12 * US);
    for at in 13..18 {
        paths.note_lost(at * US, sent[at as usize]);
        assert_eq!(paths.resume_ns(), 18 * US);
    }
    assert_eq!(paths.choose_again(17 * US, sent[13]), None);
    assert_eq!(paths.choose_again(18 * US, sent[13]), Some(sent[0]), "the last good path");
    assert!(paths.choose(18 * US).is_some());
}

#[test]
fn note_answer__mp_rdma_leaves_a_path_by_its_limit() {
    for (disorder, behind_packets, clocks) in [
        (Disorder::PAPER, 32, true),
        (Disorder::PAPER, 33, false),
        (Disorder::WINDOW, 128, true),
        (Disorder::WINDOW, 129, false),
    ] {
        let (mut paths, sent) = mp_rdma(disorder);
        paths.note_answer(12 * US, sent[0], Answer { behind_packets, ..GOOD });
        assert_eq!(paths.choose(12 * US).is_some(), clocks, "{behind_packets}");
    }
    assert_eq!(Disorder::new(65, 64), None);
    assert_eq!(Disorder::new(32, 257), None);
    assert_eq!(Disorder::new(32, 64), Some(Disorder::PAPER));
    assert_eq!(mp_rdma(Disorder::PAPER).0.window_packets(), 64);
}

/// Any feedback, in any order, to any policy: packets in flight stay counted and bounded, and the window never
/// closes for ever.
fn any_feedback(policy: PathPolicy, count: usize, most: u32, steps: &[(u8, u16, u16)]) {
    let mut paths = Paths::new(policy, count, most, 9);
    let mut sent: Vec<PathId> = Vec::new();
    let (mut now_ns, mut repeats) = (0, 0);
    for (step, pick, wait) in steps {
        now_ns += u64::from(*wait) * 100;
        sent.extend(fill(&mut paths, now_ns));
        // A look, and repetitions, may exceed the window.
        assert!(paths.in_flight() <= most + 1 + repeats);
        if sent.is_empty() {
            continue;
        }
        let path = sent.swap_remove(usize::from(*pick) % sent.len());
        match step % 8 {
            0 => paths.note_lost(now_ns, path),
            1 => paths.note_timeout(now_ns, path),
            2 => paths.note_unknown(path),
            3 => {
                paths.note_lost(now_ns, path);
                if let Some(again) = paths.choose_again(now_ns, path) {
                    paths.note_repeat(again);
                    sent.push(again);
                    repeats += 1;
                }
            }
            4 => paths.note_answer(now_ns, path, LATE),
            5 => paths.note_answer(now_ns, path, MARKED),
            _ => paths.note_answer(now_ns, path, GOOD),
        }
        assert_eq!(paths.in_flight() as usize, sent.len());
    }
    // After all answers came, and a while, there is room again.
    for path in sent {
        paths.note_unknown(path);
    }
    assert!(paths.choose(now_ns + 100_000_000).is_some(), "{paths:?}");
}

proptest! {
    #[test]
    fn paths__take_any_feedback(
        policy in prop::sample::select(&PathPolicy::ALL),
        count in 1..=32usize,
        most in 1..=256u32,
        steps in prop::collection::vec(any::<(u8, u16, u16)>(), 0..600),
    ) {
        any_feedback(policy, count, most, &steps);
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Whatever happened, good answers open every path again.
    #[test]
    fn paths__recover_from_anything(
        steps in prop::collection::vec((0..3u8, 0..8usize), 0..400),
    ) {
        let mut paths = paths(PathPolicy::Coupled);
        for (at, (step, index)) in steps.into_iter().enumerate() {
            let path = PathId(index as u8);
            paths.note_repeat(path);
            match step {
                0 => paths.note_lost(at as u64 * US, path),
                1 => paths.note_answer(at as u64 * US, path, LATE),
                _ => paths.note_answer(at as u64 * US, path, MARKED),
            }
        }
        run(&mut paths, 1_000..2_500, |_| Some(GOOD));
        prop_assert!((0..8).all(|index| paths.is_open(PathId(index))), "{:?}", paths);
    }
}

panics! {
    note_new__on_another_path: "a new packet takes the path chosen for it" => {
        let mut paths = paths(PathPolicy::Single);
        paths.choose(0);
        paths.note_new(PathId(1));
    };
    new__with_more_packets_than_a_window: "1 to 256 packets are in flight"
        => Paths::new(PathPolicy::Coupled, 8, 257, 0);
}
