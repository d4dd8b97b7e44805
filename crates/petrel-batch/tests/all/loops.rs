//! Loops with marks: the lanes stop in them, and come back to them.

use petrel_batch::batched;

#[batched(width = 8)]
fn for_range(#[shared] table: &[u32], at: usize) -> usize {
    let mut place = at;
    for _ in 0..at % 9 {
        prefetch!(&table[place]);
        place = table[place] as usize;
    }
    place
}

#[batched(width = 1)]
fn for_with_one_lane(#[shared] table: &[u32], at: usize) -> usize {
    let mut place = at;
    for _ in 0..5 {
        prefetch!(&table[place]);
        place = table[place] as usize;
    }
    place
}

#[batched]
fn for_over_slice(#[shared] table: &[u32], at: usize) -> u32 {
    let mut sum = 0;
    for (index, place) in table[at..].iter().enumerate().take(5) {
        prefetch!(&table[*place as usize]);
        sum += table[*place as usize] * (index as u32 + 1);
    }
    sum
}

#[batched]
fn for_with_closure_in_iterator(#[shared] table: &[u32], at: usize) -> u32 {
    let mut sum = 0;
    for place in (0..table.len()).filter(move |place| place % 3 == at % 3).take(4) {
        prefetch!(&table[place]);
        sum = sum * 3 + table[place];
    }
    sum
}

#[batched]
fn while_condition(#[shared] table: &[u32], at: usize) -> (usize, u32) {
    let (mut place, mut steps) = (at, 0);
    while place % 5 != 0 && steps < 10 {
        prefetch!(&table[place]);
        place = table[place] as usize;
        steps += 1;
    }
    (place, steps)
}

#[batched]
fn while_let(#[shared] table: &[u32], at: usize) -> u32 {
    let mut rest = &table[at..];
    let mut sum = 0;
    while let [first, others @ ..] = rest {
        let place = *first as usize;
        prefetch!(&table[place]);
        sum += table[place];
        if sum > 60 {
            break;
        }
        rest = others;
    }
    sum
}

#[batched]
fn while_with_mark_in_condition(#[shared] table: &[u32], at: usize) -> usize {
    let mut place = at;
    let mut steps = 0;
    while {
        prefetch!(&table[place]);
        table[place] % 2 == 1
    } {
        steps += 1;
        if steps == 6 {
            break;
        }
        if table[place] as usize == place {
            continue;
        }
        place = table[place] as usize;
    }
    place
}

#[batched]
fn loop_with_value(#[shared] table: &[u32], at: usize) -> u64 {
    let mut place = at;
    let mut steps = 0_u8;
    let found = loop {
        prefetch!(&table[place]);
        if table[place] % 4 == 0 {
            break u64::from(table[place]);
        }
        if steps > 12 {
            break 99;
        }
        steps += 1;
        place = table[place] as usize;
    };
    found.wrapping_mul(3)
}

#[batched]
fn loop_as_tail(#[shared] table: &[u32], at: usize) -> Result<u32, usize> {
    let mut place = at;
    let mut steps = 0;
    loop {
        if steps == 8 {
            return Err(place);
        }
        prefetch!(&table[place]);
        let next = table[place];
        if next % 3 == 0 {
            break Ok(next);
        }
        place = next as usize;
        steps += 1;
    }
}

#[batched]
fn continue_and_break(#[shared] table: &[u32], at: usize) -> u32 {
    let mut sum = 0;
    for place in at..table.len() {
        if place % 4 == 3 {
            continue;
        }
        prefetch!(&table[place]);
        if table[place] % 2 == 0 {
            sum += 1;
            continue;
        }
        if sum > 5 {
            break;
        }
        let other = table[place] as usize;
        prefetch!(&table[other]);
        if table[other] == 1 {
            continue;
        }
        sum += table[other];
    }
    sum
}

#[batched]
fn nested_loops(#[shared] table: &[u32], at: usize) -> u32 {
    let mut sum = 0_u32;
    for outer in 0..3 {
        prefetch!(&table[outer % table.len()]);
        let start = table[outer % table.len()] as usize;
        for inner in start..table.len().min(start + 3) {
            prefetch!(&table[inner]);
            sum = sum.wrapping_mul(5).wrapping_add(table[inner] + at as u32);
        }
        sum ^= 1;
    }
    sum
}

#[batched]
fn labels(#[shared] table: &[u32], at: usize) -> (u32, u32) {
    let (mut sum, mut skipped) = (0, 0);
    'rows: for row in at..at + 4 {
        let mut place = row % table.len();
        'cells: loop {
            prefetch!(&table[place]);
            let next = table[place] as usize;
            if next == place {
                skipped += 1;
                continue 'rows;
            }
            if sum > 50 {
                break 'rows;
            }
            sum += 1 + next as u32;
            for word in 0..next {
                if word > 4 {
                    continue 'rows;
                }
                if word == 3 {
                    break 'cells;
                }
            }
            place = next;
        }
        sum += 7;
    }
    (sum, skipped)
}

#[batched]
fn labelled_block(#[shared] table: &[u32], at: usize) -> u32 {
    let value = 'found: {
        if at % 5 == 0 {
            break 'found 1;
        }
        prefetch!(&table[at]);
        if table[at] % 2 == 0 {
            break 'found table[at];
        }
        for place in 0..3 {
            prefetch!(&table[place % table.len()]);
            if table[place % table.len()] > 4 {
                break 'found 40 + place as u32;
            }
        }
        50
    };
    value + 1
}

#[batched]
fn loop_around_branches(#[shared] table: &[u32], at: usize) -> u32 {
    let mut place = at;
    let mut trace = 0_u32;
    for step in 0..6 {
        trace = trace.wrapping_mul(31);
        place = match table[place] % 3 {
            0 => {
                prefetch!(&table[place]);
                table[place] as usize
            }
            1 if step > 2 => break,
            1 => place / 2,
            _ => {
                let next = table[place] as usize;
                prefetch!(&table[next]);
                trace += table[next];
                next
            }
        };
        trace = trace.wrapping_add(place as u32);
    }
    trace
}

#[batched]
fn mark_before_and_after_a_loop(#[shared] table: &[u32], at: usize) -> u32 {
    prefetch!(&table[at]);
    let mut place = table[at] as usize;
    let mut steps = 0;
    while place > 3 && steps < 9 {
        prefetch!(&table[place]);
        place = table[place] as usize;
        steps += 1;
    }
    let last = (place + steps) % table.len();
    prefetch!(&table[last]);
    table[last]
}

#[batched]
fn loop_without_marks(#[shared] table: &[u32], at: usize) -> u32 {
    let mut sum = 0;
    for place in 0..at {
        if table[place] == 7 {
            continue;
        }
        if sum > 100 {
            break;
        }
        sum += table[place];
    }
    prefetch!(&table[at]);
    let mut rest = table[at];
    while rest > 2 {
        rest /= 2;
    }
    sum + rest
}

#[batched]
fn short_and_long_inputs(#[shared] table: &[u32], at: usize) -> u32 {
    if at % 3 == 0 {
        return 0;
    }
    let mut place = at;
    let mut steps = 0;
    while steps < at * at {
        prefetch!(&table[place]);
        place = table[place] as usize;
        steps += 1;
    }
    place as u32
}

crate::same::same! {
    for_range for_range_batch
    for_with_one_lane for_with_one_lane_batch
    for_over_slice for_over_slice_batch
    for_with_closure_in_iterator for_with_closure_in_iterator_batch
    while_condition while_condition_batch
    while_let while_let_batch
    while_with_mark_in_condition while_with_mark_in_condition_batch
    loop_with_value loop_with_value_batch
    loop_as_tail loop_as_tail_batch
    continue_and_break continue_and_break_batch
    nested_loops nested_loops_batch
    labels labels_batch
    labelled_block labelled_block_batch
    loop_around_branches loop_around_branches_batch
    mark_before_and_after_a_loop mark_before_and_after_a_loop_batch
    loop_without_marks loop_without_marks_batch
    short_and_long_inputs short_and_long_inputs_batch
}
