//! `if`, `if let`, `match`, their chains, and marks in some of their branches.

use petrel_batch::batched;

#[batched]
fn if_without_else(#[shared] table: &[u32], at: usize) -> u32 {
    let mut sum = 1;
    if at % 3 == 0 {
        prefetch!(&table[at]);
        sum += table[at];
    }
    sum * 2
}

#[batched]
fn if_with_else(#[shared] table: &[u32], at: usize) -> u32 {
    if at % 2 == 0 {
        prefetch!(&table[at]);
        table[at] + 1
    } else {
        at as u32
    }
}

#[batched]
fn if_with_marks_in_both(#[shared] table: &[u32], at: usize) -> (u32, &'static str) {
    let word;
    let value = if at % 2 == 0 {
        prefetch!(&table[at]);
        word = "even";
        table[at]
    } else {
        word = "odd";
        let other = at / 2;
        prefetch!(&table[other]);
        table[other]
    };
    (value, word)
}

#[batched]
fn if_chain(#[shared] table: &[u32], at: usize) -> u32 {
    if at % 4 == 0 {
        prefetch!(&table[at]);
        table[at]
    } else if at % 4 == 1 {
        7
    } else if at % 4 == 2 {
        prefetch!(&table[at / 2]);
        table[at / 2] + 100
    } else {
        prefetch!(&table[at / 3]);
        table[at / 3] + 200
    }
}

#[batched]
fn if_let(#[shared] table: &[u32], at: usize) -> Option<u32> {
    if let Some(next @ 1..) = table.get(at + 1) {
        let place = *next as usize;
        prefetch!(&table[place]);
        Some(table[place] + next)
    } else {
        None
    }
}

#[batched]
fn if_let_chain(#[shared] table: &[u32], at: usize) -> Option<u32> {
    if let Some(first) = table.get(at)
        && *first > 2
        && let Some(second) = table.get(*first as usize + 1)
    {
        prefetch!(&table[*second as usize]);
        return Some(table[*second as usize] + first + second);
    }
    None
}

#[batched]
fn nested_ifs(#[shared] table: &[u32], at: usize) -> u32 {
    let mut result = 0;
    if at > 1 {
        if at % 2 == 0 {
            prefetch!(&table[at]);
            result += table[at];
            if result % 2 == 1 {
                let place = result as usize % table.len();
                prefetch!(&table[place]);
                result += 10 * table[place];
            }
            result += 1;
        }
        result += 2;
    }
    result + 3
}

#[batched]
fn ifs_in_sequence(#[shared] table: &[u32], at: usize) -> u32 {
    let mut place = at;
    if place % 2 == 0 {
        prefetch!(&table[place]);
        place = table[place] as usize;
    }
    if place % 3 == 0 {
        prefetch!(&table[place]);
        place = table[place] as usize;
    }
    if place % 5 == 0 {
        prefetch!(&table[place]);
        place = table[place] as usize;
    }
    place as u32
}

enum Step {
    Stay,
    To(usize),
    Between { low: usize, high: usize },
}

fn step(table: &[u32], at: usize) -> Step {
    match table[at] % 3 {
        0 => Step::Stay,
        1 => Step::To(table[at] as usize),
        _ => Step::Between { low: at / 2, high: at },
    }
}

#[batched]
fn match_arms(#[shared] table: &[u32], at: usize) -> u32 {
    match step(table, at) {
        Step::Stay => at as u32,
        Step::To(place) => {
            prefetch!(&table[place]);
            table[place] + 1000
        }
        Step::Between { low, high } if low != high => {
            prefetch!(&table[low]);
            let sum = table[low];
            prefetch!(&table[high]);
            sum + table[high] + 2000
        }
        Step::Between { low, .. } => low as u32,
    }
}

#[batched]
fn match_alternatives(#[shared] table: &[u32], at: usize) -> usize {
    match (at % 4, table[at] as usize) {
        (0, place) | (1, place) => {
            prefetch!(&table[place]);
            place + table[place] as usize
        }
        (rest, _) => rest,
    }
}

#[batched]
fn match_arm_that_is_a_mark(#[shared] table: &[u32], at: usize) -> u32 {
    match at % 3 {
        0 => prefetch!(&table[at]),
        1 => {}
        _ => return 5,
    }
    table[at]
}

#[batched]
fn match_as_value(#[shared] table: &[u32], at: usize) -> u64 {
    let value = match table.get(at) {
        Some(place) => {
            prefetch!(&table[*place as usize]);
            u64::from(table[*place as usize])
        }
        None => 0,
    };
    value << 3
}

#[batched]
fn match_of_block_with_mark(#[shared] table: &[u32], at: usize) -> u32 {
    match {
        prefetch!(&table[at]);
        table[at] % 3
    } {
        0 => 10,
        1 => 11,
        other => other,
    }
}

#[batched]
fn condition_with_mark(#[shared] table: &[u32], at: usize) -> bool {
    if {
        prefetch!(&table[at]);
        table[at] % 2 == 0
    } {
        return table[at] > 4;
    }
    true
}

#[batched]
fn lazy_and_or(#[shared] table: &[u32], at: usize) -> bool {
    at % 2 == 0 && {
        prefetch!(&table[at]);
        table[at] > 3
    } || {
        prefetch!(&table[at / 2]);
        table[at / 2] < 3
    }
}

crate::same::same! {
    if_without_else if_without_else_batch
    if_with_else if_with_else_batch
    if_with_marks_in_both if_with_marks_in_both_batch
    if_chain if_chain_batch
    if_let if_let_batch
    if_let_chain if_let_chain_batch
    nested_ifs nested_ifs_batch
    ifs_in_sequence ifs_in_sequence_batch
    match_arms match_arms_batch
    match_alternatives match_alternatives_batch
    match_arm_that_is_a_mark match_arm_that_is_a_mark_batch
    match_as_value match_as_value_batch
    match_of_block_with_mark match_of_block_with_mark_batch
    condition_with_mark condition_with_mark_batch
    lazy_and_or lazy_and_or_batch
}
