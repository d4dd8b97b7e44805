//! `return`, `?` and `let … else`.

use std::fmt;
use std::ops::ControlFlow;
use std::task::Poll;

use petrel_batch::batched;

#[derive(Debug, PartialEq)]
struct Missing(usize);

#[derive(Debug, PartialEq)]
enum Failure {
    Missing(usize),
    Odd,
    Format,
}

impl From<Missing> for Failure {
    fn from(missing: Missing) -> Self {
        Self::Missing(missing.0)
    }
}

impl From<fmt::Error> for Failure {
    fn from(_: fmt::Error) -> Self {
        Self::Format
    }
}

fn place(table: &[u32], at: usize) -> Result<usize, Missing> {
    table.get(at + 3).map(|place| *place as usize).ok_or(Missing(at))
}

#[batched]
fn early_returns(#[shared] table: &[u32], at: usize) -> u32 {
    if at == 1 {
        return 100;
    }
    prefetch!(&table[at]);
    if table[at] == 0 {
        return 200;
    }
    let next = table[at] as usize;
    prefetch!(&table[next]);
    return table[next];
}

#[batched]
fn question_of_option(#[shared] table: &[u32], at: usize) -> Option<u32> {
    let first = *table.get(at + 1)? as usize;
    prefetch!(&table[first]);
    let second = table.get(first)?.checked_sub(1)?;
    prefetch!(&table[second as usize]);
    Some(*table.get(second as usize)?)
}

#[batched]
fn question_converts_errors(#[shared] table: &[u32], at: usize) -> Result<usize, Failure> {
    use std::fmt::Write;

    let first = place(table, at)?;
    prefetch!(&table[first]);
    let second = place(table, table[first] as usize)?;
    let mut text = String::new();
    write!(text, "{second}")?;
    if text.len() == 1 {
        return Err(Failure::Odd);
    }
    Ok(second)
}

#[batched]
fn question_in_a_closure(#[shared] table: &[u32], at: usize) -> Option<usize> {
    prefetch!(&table[at]);
    let sum = || -> Result<usize, Missing> { Ok(place(table, at)? + place(table, at + 1)?) };
    sum().ok()
}

#[batched]
fn question_of_control_flow(#[shared] table: &[u32], at: usize) -> ControlFlow<u32, usize> {
    prefetch!(&table[at]);
    let search = table[at..].iter().try_for_each(|value| match value % 7 {
        3 => ControlFlow::Break(*value),
        _ => ControlFlow::Continue(()),
    });
    search?;
    ControlFlow::Continue(at)
}

#[batched]
fn question_of_poll(#[shared] table: &[u32], at: usize) -> Poll<Result<usize, Failure>> {
    prefetch!(&table[at]);
    let ready: Poll<Result<usize, Missing>> = match table[at] % 3 {
        0 => Poll::Pending,
        _ => Poll::Ready(place(table, at)),
    };
    let ready = ready?;
    ready.map(|place| Ok(place + 1))
}

#[batched]
fn question_in_a_loop(#[shared] table: &[u32], at: usize) -> Result<usize, Failure> {
    let mut walked = at;
    for _ in 0..4 {
        prefetch!(&table[walked]);
        walked = place(table, walked)?;
    }
    Ok(walked)
}

#[batched]
fn let_else(#[shared] table: &[u32], at: usize) -> Option<u32> {
    let Some(first) = table.get(at + 2) else { return None };
    prefetch!(&table[*first as usize]);
    let [second, third, ..] = table[*first as usize..] else {
        let last = table.len() - 1;
        prefetch!(&table[last]);
        return Some(table[last] + 5);
    };
    Some(second + third)
}

#[batched]
fn let_else_with_mark_in_value(#[shared] table: &[u32], at: usize) -> u32 {
    let Some(value) = ({
        prefetch!(&table[at]);
        table.get(table[at] as usize + 1)
    }) else {
        return 3;
    };
    *value
}

#[batched]
fn let_else_in_a_loop(#[shared] table: &[u32], at: usize) -> u32 {
    let mut walked = at;
    let mut sum = 0;
    loop {
        prefetch!(&table[walked]);
        let Some(next) = table.get(walked + 1) else { break };
        let 0..=20 = sum else { return 77 };
        sum += next;
        walked += 1;
    }
    sum
}

#[batched]
fn no_result(#[shared] table: &[u32], at: usize) {
    if at > 5 {
        return;
    }
    prefetch!(&table[at]);
    assert!((table[at] as usize) < table.len());
}

#[batched]
fn result_that_needs_drop(#[shared] table: &[u32], at: usize) -> Vec<String> {
    prefetch!(&table[at]);
    vec![table[at].to_string(), at.to_string()]
}

crate::same::same! {
    early_returns early_returns_batch
    question_of_option question_of_option_batch
    question_converts_errors question_converts_errors_batch
    question_in_a_closure question_in_a_closure_batch
    question_of_control_flow question_of_control_flow_batch
    question_of_poll question_of_poll_batch
    question_in_a_loop question_in_a_loop_batch
    let_else let_else_batch
    let_else_with_mark_in_value let_else_with_mark_in_value_batch
    let_else_in_a_loop let_else_in_a_loop_batch
    no_result no_result_batch
    result_that_needs_drop result_that_needs_drop_batch
}
