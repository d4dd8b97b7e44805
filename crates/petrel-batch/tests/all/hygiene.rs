//! Names of the user that resemble those of generated code.

#![allow(clippy::module_inception)]

use petrel_batch::batched;

mod core {}
mod std {}

#[derive(Clone, Copy)]
#[expect(dead_code, reason = "the names are what is tested")]
enum Option {
    Some,
    None,
}

#[expect(dead_code, reason = "the names are what is tested")]
fn tie() {}

#[batched]
fn names_of_parameters(#[shared] inputs: &[u32], each: usize) -> u32 {
    prefetch!(&inputs[each]);
    inputs[each]
}

#[batched]
fn names_of_the_machine(#[shared] table: &[u32], at: usize) -> usize {
    let (lane, lanes, live, index, result, input, krate) =
        (at, at + 1, at + 2, at + 3, at + 4, at + 5, at + 6);
    let mut walked = at;
    for _ in 0..3 {
        prefetch!(&table[walked]);
        walked = table[walked] as usize;
    }
    lane + lanes + live + index + result + input + krate + walked
}

#[batched]
fn labels_of_the_machine(#[shared] table: &[u32], at: usize) -> u32 {
    'step: loop {
        'rounds: loop {
            prefetch!(&table[at]);
            if table[at] % 2 == 0 {
                break 'rounds;
            }
            break 'step 3;
        }
        break 4;
    }
}

#[batched]
fn own_types_of_std(#[shared] table: &[u32], at: usize) -> u32 {
    let mine = Option::Some;
    prefetch!(&table[at]);
    match mine {
        Option::Some => table[at],
        Option::None => 0,
    }
}

macro_rules! made {
    ($name:ident, $value:ident, $extra:expr) => {
        #[batched]
        fn $name(#[shared] table: &[u32], $value: usize) -> u32 {
            let local = table[$value] as usize;
            prefetch!(&table[local]);
            let value = $extra;
            table[local] + value
        }
    };
}

made!(made_by_a_macro, place, 5);

macro_rules! add_to {
    ($sum:ident, $more:expr) => {{
        let at = 1;
        $sum += $more + at;
    }};
}

#[batched]
fn macro_of_the_user(#[shared] table: &[u32], at: usize) -> u32 {
    let mut sum = 0;
    for place in 0..at.min(4) {
        prefetch!(&table[place]);
        add_to!(sum, table[place] + at as u32);
    }
    sum
}

crate::same::same! {
    names_of_parameters names_of_parameters_batch
    names_of_the_machine names_of_the_machine_batch
    labels_of_the_machine labels_of_the_machine_batch
    own_types_of_std own_types_of_std_batch
    made_by_a_macro made_by_a_macro_batch
    macro_of_the_user macro_of_the_user_batch
}
