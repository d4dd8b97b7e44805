//! The goals for several paths (`docs/paths.md`), which `Coupled` reaches in the model.

use petrel_paths::rows::{Row, Table};
use petrel_proto::path::PathPolicy;

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

/// The model shows differences: one path of four has a quarter.
#[test]
fn single__uses_one_link() {
    let table = Table { policy: PathPolicy::Single, ..table() };
    let row = &table.no_loss()[0];
    assert!((0.24..0.26).contains(&row.mean_share()), "{row:?}");
}
