//! Locals that lanes keep across marks, or do not keep.

use petrel_batch::batched;

#[batched]
fn shadowed(#[shared] table: &[u32], at: usize) -> (usize, usize, u32) {
    let value = at;
    let outer = value + 1;
    let value = value * 2;
    let inner = {
        let value = value as u32 + 3;
        prefetch!(&table[at]);
        let value = value + table[at];
        value
    };
    prefetch!(&table[at]);
    (value, outer, inner)
}

#[batched]
fn shadowed_argument(#[shared] table: &[u32], at: usize) -> u32 {
    let at = table[at] as usize;
    prefetch!(&table[at]);
    let at = table[at];
    at
}

#[batched]
fn shadowed_shared_argument(#[shared] table: &[u32], at: usize) -> u32 {
    let table = &table[at..];
    prefetch!(table);
    table[0]
}

#[batched]
fn shadowed_in_branch_pattern(#[shared] table: &[u32], at: usize) -> u32 {
    let value = table[at];
    let sum = match table.get(at + 1) {
        Some(value) => {
            prefetch!(&table[*value as usize]);
            table[*value as usize]
        }
        None => value,
    };
    sum + value
}

#[batched]
fn assigned_later(#[shared] table: &[u32], at: usize) -> u32 {
    let result: u32;
    let factor;
    prefetch!(&table[at]);
    if table[at] % 2 == 0 {
        factor = 3;
        let next = table[at] as usize;
        prefetch!(&table[next]);
        result = table[next];
    } else {
        factor = 5;
        result = 1;
    }
    result * factor
}

#[batched]
fn assigned_in_a_loop(#[shared] table: &[u32], at: usize) -> u32 {
    let mut last;
    let mut place = at;
    let mut steps = 0;
    loop {
        prefetch!(&table[place]);
        last = table[place];
        steps += 1;
        if steps == 4 || last == 0 {
            break;
        }
        place = last as usize;
    }
    last + steps
}

#[batched]
fn typed_by_later_use(#[shared] table: &[u32], at: usize) -> u64 {
    let mut sum = 0;
    let mut list: [u64; 2] = Default::default();
    prefetch!(&table[at]);
    sum += u64::from(table[at]);
    list = [sum + list[1]; 2];
    prefetch!(&table[at / 2]);
    sum + list[0] + u64::from(table[at / 2])
}

#[batched]
fn moved_before_the_mark(#[shared] table: &[u32], at: usize) -> usize {
    let length = {
        let words = vec![at; 3];
        let moved = words;
        moved.len()
    };
    prefetch!(&table[at]);
    length + table[at] as usize
}

#[batched]
fn unique_reference(#[shared] table: &[u32], at: usize) -> u32 {
    let mut values = [at as u32, 2, 3];
    prefetch!(&table[at]);
    let first = &mut values[0];
    *first += table[at];
    prefetch!(&table[at / 2]);
    values[1] += table[at / 2];
    values.iter().sum()
}

#[batched]
fn arrays_and_tuples(#[shared] table: &[u32], at: usize) -> [u32; 4] {
    let mut found = [0; 4];
    let (low, mut high) = (at / 2, at);
    for slot in 0..found.len() {
        prefetch!(&table[low]);
        found[slot] = table[low] + high as u32;
        high += slot;
    }
    found
}

struct Cursor<'t> {
    table: &'t [u32],
    place: usize,
}

impl Cursor<'_> {
    fn advance(&mut self) -> u32 {
        let value = self.table[self.place];
        self.place = value as usize;
        value
    }
}

#[batched]
fn struct_with_methods(#[shared] table: &[u32], at: usize) -> (u32, usize) {
    let mut cursor = Cursor { table, place: at };
    let mut sum = 0;
    for _ in 0..5 {
        prefetch!(&cursor.table[cursor.place]);
        sum += cursor.advance();
    }
    let Cursor { place, .. } = cursor;
    prefetch!(&table[place]);
    (sum, place)
}

#[batched]
fn struct_shorthand(#[shared] table: &[u32], at: usize) -> usize {
    let place = at;
    prefetch!(&table[place]);
    let mut cursor = Cursor { table, place };
    cursor.advance() as usize
}

#[batched]
fn raw_names(#[shared] table: &[u32], r#type: usize) -> u32 {
    let r#match = table[r#type] as usize;
    prefetch!(&table[r#match]);
    table[r#match] + r#type as u32
}

#[batched]
fn used_by_macros(#[shared] table: &[u32], at: usize) -> String {
    let (one, two, three) = (at, at + 1, at + 2);
    let width = 5;
    prefetch!(&table[at]);
    assert!(one < two, "{three}");
    let value = table[at];
    prefetch!(&table[at]);
    format!("{one} {} {three:>width$} {value:?}", two)
}

#[batched]
fn used_by_a_closure(#[shared] table: &[u32], at: usize) -> u32 {
    let base = at as u32;
    prefetch!(&table[at]);
    let shifted = |value: u32| value * 2 + base;
    let value = shifted(table[at]);
    prefetch!(&table[at]);
    (0..3).map(|base| base + value).sum()
}

#[batched]
fn closure_kept(#[shared] table: &[u32], at: usize) -> u32 {
    let base = at as u32;
    let shifted = move |value: u32| value * 2 + base;
    prefetch!(&table[at]);
    shifted(table[at])
}

#[batched]
fn constants_in_patterns(#[shared] table: &[u32], at: usize) -> u32 {
    const SEVEN: u32 = 7;
    static TENS: [u32; 3] = [10, 20, 30];
    fn third(value: u32) -> usize {
        value as usize % 3
    }
    match table[at] {
        SEVEN => {
            prefetch!(&table[at / 2]);
            table[at / 2] + SEVEN
        }
        other => {
            prefetch!(&TENS[third(other)]);
            TENS[third(other)]
        }
    }
}

/// At the mark, only the jump leads to a read of `kept` without a write before.
#[batched]
fn read_behind_continue(#[shared] table: &[u32], at: usize) -> u32 {
    let (mut kept, mut is_last) = (at as u32, false);
    loop {
        if is_last {
            return kept;
        }
        is_last = true;
        prefetch!(&table[at]);
        if table[at] % 2 == 0 {
            continue;
        }
        kept = 7;
    }
}

#[batched]
fn read_behind_continue_with_label(#[shared] table: &[u32], at: usize) -> u32 {
    let (mut kept, mut turns) = (at as u32, 0);
    'outer: while turns < 2 {
        turns += 1 + kept / 90;
        for place in at..table.len() {
            prefetch!(&table[place]);
            if table[place] % 2 == 0 {
                continue 'outer;
            }
            kept = table[place] + 100;
        }
        return 7;
    }
    turns
}

#[batched]
fn written_by_a_side_that_may_be_left_out(#[shared] table: &[u32], at: usize) -> (u32, u32) {
    let (mut one, mut two) = (at as u32, at as u32 * 2);
    prefetch!(&table[at]);
    let is_odd = |value: u32| value % 2 == 1;
    let all = is_odd(table[at]) && {
        one = 3;
        true
    };
    let any = is_odd(table[at]) || {
        two = 4;
        all
    };
    (one + any as u32, two)
}

#[batched]
fn assigned_as_a_slice(#[shared] table: &[u32], at: usize) -> u32 {
    const PAIR: [u32; 2] = [1, 2];
    let slice: &[u32];
    let list;
    slice = &PAIR;
    prefetch!(&table[at]);
    list = vec![table[at]];
    slice[0] + list[0]
}

fn parsed(at: usize) -> Result<usize, String> {
    if at % 3 == 0 { Err(format!("{at} is no place")) } else { Ok(at) }
}

/// The marked branches get all parts of the values.
#[batched]
fn matched_values_without_a_rest(#[shared] table: &[u32], at: usize) -> Result<u32, String> {
    let first = match parsed(at) {
        Ok(place) => {
            prefetch!(&table[place]);
            table[place]
        }
        Err(_) => 5,
    };
    if let Ok(place) = parsed(at + 1)
        && let Some(value) = table.get(place)
    {
        prefetch!(value);
        return Ok(*value + first);
    }
    let place = parsed(at)?;
    prefetch!(&table[place]);
    Ok(table[place])
}

#[batched]
fn unused(#[shared] table: &[u32], at: usize) -> usize {
    let _ignored = table[at];
    let _ = table.len();
    let line = &table[at];
    prefetch!(line);
    at
}

crate::same::same! {
    shadowed shadowed_batch
    shadowed_argument shadowed_argument_batch
    shadowed_shared_argument shadowed_shared_argument_batch
    shadowed_in_branch_pattern shadowed_in_branch_pattern_batch
    assigned_later assigned_later_batch
    assigned_in_a_loop assigned_in_a_loop_batch
    typed_by_later_use typed_by_later_use_batch
    moved_before_the_mark moved_before_the_mark_batch
    unique_reference unique_reference_batch
    arrays_and_tuples arrays_and_tuples_batch
    struct_with_methods struct_with_methods_batch
    struct_shorthand struct_shorthand_batch
    raw_names raw_names_batch
    used_by_macros used_by_macros_batch
    used_by_a_closure used_by_a_closure_batch
    closure_kept closure_kept_batch
    constants_in_patterns constants_in_patterns_batch
    read_behind_continue read_behind_continue_batch
    read_behind_continue_with_label read_behind_continue_with_label_batch
    written_by_a_side_that_may_be_left_out written_by_a_side_that_may_be_left_out_batch
    assigned_as_a_slice assigned_as_a_slice_batch
    matched_values_without_a_rest matched_values_without_a_rest_batch
    unused unused_batch
}
