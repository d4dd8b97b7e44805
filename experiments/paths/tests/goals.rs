//! The goals for several paths (`docs/papers.md`), which `Coupled` and MP-RDMA reach in the model.

use petrel_paths::figures::{self, DISORDERED};
use petrel_paths::rows::{Row, Table};
use petrel_proto::path::{Disorder, PathPolicy};

/// Two seeds that were not used in choosing the rules, and are not those of the published table.
fn table() -> Table {
    Table { seeds: 21..=22, ..Table::default() }
}

fn check(row: &Row, share_min: f64) {
    assert!(row.least_share() >= share_min, "{row:?}");
}

#[test]
fn no_loss__all_links_full_and_nothing_repeated_needlessly() {
    for row in table().no_loss() {
        check(&row, 0.95);
        assert!(row.needless_per_mille < 1.0, "{row:?}");
    }
}

#[test]
fn fairness__differences_of_four_senders_even_out_with_time() {
    let [short, long] = [10, 160].map(|span_ms| table().fairness(4, span_ms)[0]);
    assert!(long >= 0.999 && 1.0 - long < (1.0 - short) / 2.0, "{short} and {long}");
}

#[test]
fn loss__lossy_paths_are_left_to_themselves() {
    for (loss, share_min) in [(0.005, 0.98), (0.01, 0.98), (0.05, 0.95), (0.1, 0.92)] {
        check(&table().loss(40.0, 3, loss), share_min);
    }
}

#[test]
fn unequal__the_sum_and_a_slow_path_takes_nothing() {
    check(&table().unequal(), 0.9);
    check(&table().slow_path(), 0.999);
}

#[test]
fn cut__the_others_are_full_and_the_path_comes_back() {
    table().cut().iter().for_each(|row| check(row, 0.95));
}

#[test]
fn incast__full_and_fair() {
    let (row, jain, queue) = table().incast(9);
    check(&row, 0.98);
    assert!(jain > 0.95 && queue < 40.0, "{jain} {queue}");
}

fn mp_rdma() -> Table {
    Table { policy: PathPolicy::MpRdma(Disorder::WINDOW), ..table() }
}

/// Repetitions take the paths of answers, and losses clock nothing out: lossy paths are left.
#[test]
fn loss__mp_rdma_leaves_lossy_paths() {
    for (loss, share_min) in [(0.005, 0.98), (0.01, 0.98), (0.05, 0.94), (0.1, 0.95)] {
        let row = mp_rdma().loss(40.0, 3, loss);
        check(&row, share_min);
        assert!(row.repeated_per_mille < 30.0, "{row:?}");
    }
}

#[test]
fn cuts__mp_rdma_fills_the_paths_that_are_left() {
    let shares = figures::cuts(&mp_rdma(), 21);
    assert!(shares.iter().all(|share| *share > 0.95), "{shares:?}");
}

#[test]
fn mark_ratios__mp_rdma_balances_unequal_paths() {
    let ratios = figures::mark_ratios(21);
    let least = ratios.iter().fold(1.0, |least: f64, ratio| least.min(*ratio));
    assert!(ratios.iter().all(|ratio| *ratio < 1.15 * least), "{ratios:?}");
}

#[test]
fn tail_packets__the_limit_of_mp_rdma_prunes_a_slow_path() {
    let none = Disorder::new(256, 256).unwrap();
    let tail = |limits| DISORDERED[2].tail_packets(21, limits);
    let (with, without) = (tail(Disorder::PAPER), tail(none));
    assert!(5 * with < without, "{with} {without}");
}

/// The model shows differences: one path of four has a quarter.
#[test]
fn single__uses_one_link() {
    let table = Table { policy: PathPolicy::Single, ..table() };
    let row = &table.no_loss()[0];
    assert!((0.24..0.26).contains(&row.mean_share()), "{row:?}");
}
