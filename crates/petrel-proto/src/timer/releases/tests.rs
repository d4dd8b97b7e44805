use proptest::prelude::*;

use super::super::TimerWheel;
use super::*;

const TICK: u64 = 1 << TICK_SHIFT;

fn key(session: u32) -> TimerKey {
    TimerKey { session, generation: 0, slot: 0 }
}

fn due(wheel: &mut TimerWheel, now_ns: u64) -> Vec<u32> {
    wheel.advance(now_ns);
    std::iter::from_fn(|| wheel.pop_release()).map(|key| key.session).collect()
}

#[test]
fn releases__come_due_in_their_order_and_never_early() {
    let mut wheel = TimerWheel::new(0);
    wheel.insert_release(0, key(1), 5 * TICK);
    wheel.insert_release(0, key(2), 3 * TICK + 1);
    wheel.insert_release(0, key(3), 3 * TICK + 2);
    wheel.insert_release(0, key(4), 3 * TICK);
    assert_eq!(wheel.next_due_ns(), Some(4 * TICK));
    assert_eq!(due(&mut wheel, 4 * TICK - 1), [] as [u32; 0]);
    assert_eq!(due(&mut wheel, 4 * TICK), [2, 3, 4]);
    assert_eq!(due(&mut wheel, 90 * TICK), [1]);
    assert_eq!(wheel.next_due_ns(), None);
}

#[test]
fn releases__after_a_long_idleness_keep_their_time() {
    let mut wheel = TimerWheel::new(0);
    wheel.insert_release(0, key(1), TICK);
    let now_ns = 1_000_000 * TICK;
    assert_eq!(due(&mut wheel, now_ns), [1]);
    // The endpoint sleeps, and nothing moves time forward in the wheel.
    let now_ns = now_ns + 100 * TICK;
    wheel.insert_release(now_ns, key(2), now_ns + 400 * TICK);
    assert_eq!(wheel.next_due_ns(), Some(now_ns + 401 * TICK));
    assert_eq!(due(&mut wheel, now_ns + 400 * TICK), [] as [u32; 0]);
    assert_eq!(due(&mut wheel, now_ns + 401 * TICK), [2]);
}

/// A session whose time has passed waits for the next tick, not for a turn of the wheel.
#[test]
fn releases__that_are_late_come_due_with_the_next_tick() {
    for release_ns in [0, 3 * TICK, 10 * TICK - 1] {
        let mut wheel = TimerWheel::new(0);
        wheel.insert_release(0, key(1), 9 * TICK);
        assert_eq!(due(&mut wheel, 10 * TICK), [1]);
        wheel.insert_release(10 * TICK, key(2), release_ns);
        assert_eq!(wheel.next_due_ns(), Some(11 * TICK));
        assert_eq!(due(&mut wheel, 11 * TICK), [2]);
    }
}

#[test]
fn releases__beyond_the_horizon_come_early() {
    let mut wheel = TimerWheel::new(0);
    wheel.insert_release(0, key(1), 10_000 * TICK);
    assert_eq!(due(&mut wheel, (BUCKETS - 2) * TICK), [] as [u32; 0]);
    assert_eq!(due(&mut wheel, (BUCKETS - 1) * TICK), [1]);
}

#[test]
fn releases__and_timeouts_do_not_mix() {
    let mut wheel = TimerWheel::new(0);
    wheel.insert(key(1), 300 * TICK);
    wheel.insert_release(0, key(2), 300 * TICK);
    wheel.advance(310 * TICK);
    assert_eq!(wheel.pop_due(), None, "the tick of timeouts is 66 µs");
    assert_eq!(wheel.pop_release(), Some(key(2)));
    assert_eq!(wheel.next_due_ns(), Some(320 * TICK));
    wheel.advance(320 * TICK);
    assert_eq!((wheel.pop_due(), wheel.pop_release()), (Some(key(1)), None));
}

#[test]
fn memory__is_reused() {
    let mut releases = Releases::new(0);
    for round in 0..1000 {
        let now_ns = round * 100 * TICK;
        (0..50).for_each(|session| {
            releases.insert(now_ns, key(session), now_ns + u64::from(session) * TICK);
        });
        releases.collect_due(now_ns + 99 * TICK);
        assert_eq!(std::iter::from_fn(|| releases.pop_due()).count(), 50);
    }
    assert_eq!((releases.count, releases.nodes.len()), (0, 50));
}

proptest! {
    /// Compares with a naive model: a list of release times, sorted by tick.
    #[test]
    fn releases__match_the_model(
        steps in prop::collection::vec((0u64..700, prop::collection::vec(0u64..1500, 0..4)), 1..80),
    ) {
        let mut wheel = TimerWheel::new(0);
        let mut model: Vec<(u64, u32)> = Vec::new();
        // Early entries have no defined order among late ones.
        let mut far = std::collections::HashSet::new();
        let (mut now_ns, mut session) = (0, 0);
        for (pass, ahead) in steps {
            now_ns += pass * TICK / 3;
            let popped = due(&mut wheel, now_ns);
            let mut order = Vec::new();
            for session in popped {
                let at = model.iter().position(|(_, other)| *other == session).expect("was put in");
                let (release_ns, _) = model.remove(at);
                if release_ns > now_ns {
                    wheel.insert_release(now_ns, key(session), release_ns);
                    model.push((release_ns, session));
                } else if !far.contains(&session) {
                    order.push(release_ns / TICK);
                }
            }
            prop_assert!(order.is_sorted(), "{:?}", order);
            prop_assert!(model.iter().all(|(release_ns, _)| *release_ns / TICK + 1 > now_ns / TICK));
            for ahead in ahead {
                let release_ns = now_ns + ahead * TICK / 3;
                wheel.insert_release(now_ns, key(session), release_ns);
                model.push((release_ns, session));
                if ahead / 3 >= 250 {
                    far.insert(session);
                }
                session += 1;
            }
            let next_ns = wheel.next_due_ns();
            prop_assert_eq!(next_ns.is_some(), !model.is_empty());
            prop_assert!(next_ns.is_none_or(|next_ns| next_ns > now_ns));
        }
    }
}

/// Time goes on while an entry waits: a later entry is not cut to the former horizon of the wheel.
#[test]
fn insert__counts_from_now_while_others_wait() {
    let mut releases = Releases::new(0);
    let at = |tick: u64| tick << TICK_SHIFT;
    let long = BUCKETS - 2;
    assert_eq!(releases.insert(0, key(1), at(long)), at(long + 1));
    assert_eq!(releases.collect_due(at(100)), Some(at(long + 1)));
    assert_eq!(releases.insert(at(100), key(2), at(100 + long)), at(101 + long));
}

panics! {
    collect_due__of_a_filled_bucket_without_an_entry: "a bucket marked as filled has an entry" => {
        let mut releases = Releases::new(0);
        releases.insert(0, key(1), 3 * TICK);
        releases.lists.fill(List::EMPTY);
        releases.collect_due(9 * TICK);
    };
}
