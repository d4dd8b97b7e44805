//! Marks in blocks whose values are used.

use petrel_batch::batched;

#[batched]
fn tail_block(#[shared] table: &[u32], at: usize) -> u32 {
    {
        prefetch!(&table[at]);
        table[at]
    }
}

#[batched]
fn unsafe_block(#[shared] table: &[u32], at: usize) -> u32 {
    let pointer = table.as_ptr();
    // SAFETY: the tests' inputs are places of the table.
    unsafe {
        let entry = pointer.add(at);
        prefetch!(entry);
        *entry
    }
}

#[batched]
fn let_of_if(#[shared] table: &[u32], at: usize) -> u16 {
    let value: u16 = if at % 2 == 0 {
        prefetch!(&table[at]);
        table[at] as u16
    } else {
        255
    };
    value.rotate_left(9)
}

#[batched]
fn assignment_of_block(#[shared] table: &[u32], at: usize) -> u32 {
    let mut values = [0; 2];
    values[at % 2] = {
        prefetch!(&table[at]);
        table[at]
    };
    values[0] * 3 + values[1]
}

#[batched]
fn return_of_block(#[shared] table: &[u32], at: usize) -> u32 {
    if at % 2 == 0 {
        return {
            prefetch!(&table[at]);
            table[at]
        };
    }
    1
}

#[batched]
fn break_of_block(#[shared] table: &[u32], at: usize) -> u32 {
    let mut steps = 0;
    loop {
        if steps > at % 3 {
            break {
                prefetch!(&table[at]);
                table[at] + 7
            };
        }
        prefetch!(&table[steps]);
        steps += 1 + table[steps.min(table.len() - 1)] as usize;
    }
}

#[batched]
fn first_operands(#[shared] table: &[u32], at: usize) -> Option<u64> {
    let value = u64::from({
        prefetch!(&table[at]);
        table[at]
    });
    let more = {
        prefetch!(&table[at / 2]);
        table[at / 2]
    } as u64
        + value;
    Some(
        {
            prefetch!(&table[at / 3]);
            u64::from(table[at / 3]) + more
        }
        .max(value),
    )
}

#[batched]
fn question_of_block(#[shared] table: &[u32], at: usize) -> Option<u32> {
    let value = {
        prefetch!(&table[at]);
        table.get(table[at] as usize + 2)
    }?;
    Some(*value)
}

#[batched]
fn blocks_in_blocks(#[shared] table: &[u32], at: usize) -> u32 {
    let one = {
        let two = {
            prefetch!(&table[at]);
            let three = {
                prefetch!(&table[at / 2]);
                table[at / 2]
            };
            three + 1
        };
        two + table[at]
    };
    one + 4
}

#[batched]
fn statement_of_block(#[shared] table: &[u32], at: usize) -> usize {
    {
        let place = at;
        prefetch!(&table[place]);
        assert_eq!(place, at);
    }
    if at > 3 {
        prefetch!(&table[at]);
        table[at]
    } else {
        5
    };
    at
}

crate::same::same! {
    tail_block tail_block_batch
    unsafe_block unsafe_block_batch
    let_of_if let_of_if_batch
    assignment_of_block assignment_of_block_batch
    return_of_block return_of_block_batch
    break_of_block break_of_block_batch
    first_operands first_operands_batch
    question_of_block question_of_block_batch
    blocks_in_blocks blocks_in_blocks_batch
    statement_of_block statement_of_block_batch
}
