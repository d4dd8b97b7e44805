//! The forms of marks.

use petrel_batch::batched;

#[batched]
fn addresses(#[shared] table: &[u32], at: usize) -> u32 {
    prefetch!(&table[at]);
    let pointer: *const u32 = &table[at];
    prefetch!(pointer);
    prefetch!(pointer.cast_mut());
    prefetch!(table.get(at));
    prefetch!(None::<&u64>);
    prefetch!(&table[at..]);
    table[at]
}

#[batched]
fn options(#[shared] table: &[u32], at: usize) -> u32 {
    prefetch!(&table[at], lines = 2);
    let first = table[at];
    prefetch!(&table[first as usize], write);
    let second = table[first as usize];
    prefetch!(&table[second as usize], write, lines = 1 + at % 2,);
    table[second as usize]
}

#[batched]
fn several_at_once(#[shared] table: &[u32], at: usize) -> u32 {
    prefetch!(&table[at]);
    prefetch!(&table[at / 2]);
    switch!();
    table[at] + table[at / 2]
}

#[batched]
fn switch_alone(#[shared] table: &[u32], at: usize) -> u32 {
    let mut sum = 0;
    for step in 0..3 {
        petrel_batch::switch!();
        sum += table[at] + step;
    }
    sum
}

#[batched]
fn last_statement(#[shared] table: &[u32], at: usize) {
    if at > 3 {
        prefetch!(&table[at])
    }
}

#[batched]
fn braces_and_brackets(#[shared] table: &[u32], at: usize) -> u32 {
    prefetch! { &table[at] }
    let next = table[at] as usize;
    prefetch![&table[next]];
    table[next]
}

crate::same::same! {
    addresses addresses_batch
    options options_batch
    several_at_once several_at_once_batch
    switch_alone switch_alone_batch
    last_statement last_statement_batch
    braces_and_brackets braces_and_brackets_batch
}
