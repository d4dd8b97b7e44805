//! Batched functions that call each other.

use petrel_batch::batched;

#[batched]
mod lookup {
    /// A word that the functions of the module name, and the caller's local too.
    fn offset(value: u32) -> u32 {
        value + 1
    }

    #[batched]
    pub(super) fn entry(#[shared] table: &[u32], at: usize) -> u32 {
        prefetch!(&table[at]);
        table[at]
    }

    #[batched]
    fn checked(#[shared] table: &[u32], at: usize) -> Option<&u32> {
        let place = table.get(at + 1)?;
        prefetch!(place);
        if *place % 3 == 0 {
            return None;
        }
        Some(place)
    }

    #[batched]
    fn chase<T: Copy>(#[shared] table: &[T], mut at: usize, steps: usize) -> usize
    where
        u32: From<T>,
    {
        for _ in 0..steps {
            prefetch!(&table[at]);
            at = u32::from(table[at]) as usize;
        }
        at
    }

    #[batched]
    fn shifted(#[shared] table: &[u32], key: usize) -> u32 {
        let at = key / 2;
        prefetch!(&table[at]);
        offset(table[at])
    }

    #[batched]
    pub(super) fn in_sequence(#[shared] table: &[u32], at: usize) -> u32 {
        let first = entry(table, at);
        let second = entry(table, first as usize);
        second + first
    }

    #[batched]
    pub(super) fn with_question(#[shared] table: &[u32], at: usize) -> Option<u32> {
        let first = *checked(table, at)? as usize;
        checked(table, first).map(|value| value + 1)
    }

    #[batched]
    pub(super) fn in_a_loop(#[shared] table: &[u32], at: usize) -> u32 {
        let mut sum = 0;
        for place in 0..3 {
            match self::checked(table, at + place) {
                Some(value) => sum += value,
                None if place == 1 => break,
                None => continue,
            }
            if let Some(value) = checked(table, place) {
                sum += value * 10;
            }
        }
        sum
    }

    #[batched]
    pub(super) fn of_a_loop(#[shared] table: &[u32], at: usize) -> usize {
        let walked = chase(table, at, at % 5);
        prefetch!(&table[walked]);
        chase(table, table[walked] as usize, 2)
    }

    #[batched]
    pub(super) fn through_another(#[shared] table: &[u32], at: usize) -> u32 {
        let value = in_sequence(table, at);
        entry(table, at) + value
    }

    #[batched]
    pub(super) fn hygienic(#[shared] table: &[u32], at: usize) -> u32 {
        let offset = 100;
        let key = at as u32;
        let value = shifted(table, at);
        value + offset + key
    }

    #[batched]
    pub(super) fn as_tail(#[shared] table: &[u32], at: usize) -> Option<u32> {
        if at % 2 == 0 {
            return Some(entry(table, at));
        }
        Some(*checked(table, at)?)
    }
}

use lookup::*;

#[batched]
fn sum_of_block(#[shared] table: &[u32], at: usize) -> u32 {
    let first = table[at];
    prefetch!(&table[at]);
    // Outside of a batched module a call runs the plain function.
    first + entry(table, at)
}

crate::same::same! {
    entry entry_batch
    in_sequence in_sequence_batch
    with_question with_question_batch
    in_a_loop in_a_loop_batch
    of_a_loop of_a_loop_batch
    through_another through_another_batch
    hygienic hygienic_batch
    as_tail as_tail_batch
    sum_of_block sum_of_block_batch
}
