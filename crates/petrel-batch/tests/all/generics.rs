//! Signatures: generics, lifetimes, methods, patterns, `impl Trait`, attributes.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt::Debug;
use std::rc::Rc;

use petrel_batch::{batched, check};

const NUMBERS: [u32; 6] = [5, 0, 3, 1, 2, 4];
const PLACES: [usize; 6] = [0, 5, 3, 3, 1, 4];

#[batched]
fn generic<'t, K, V: ?Sized>(#[shared] table: &'t [(K, Box<V>)], key: K) -> Option<&'t V>
where
    K: PartialEq + Copy,
{
    for (other, value) in table {
        prefetch!(&**value);
        if *other == key {
            return Some(value);
        }
    }
    None
}

#[test]
fn generic__batch_is_same() {
    let table: Vec<(char, Box<str>)> = vec![('a', "one".into()), ('b', "two".into())];
    check(
        &['b', 'x', 'a', 'b'],
        |key| generic(&table, key),
        |inputs, each| generic_batch(&table, inputs, each),
    );
}

#[batched(width = WIDTH)]
fn width_of_caller<const WIDTH: usize>(#[shared] table: &[u32], at: usize) -> u32 {
    let mut place = at;
    for _ in 0..4 {
        prefetch!(&table[place]);
        place = table[place] as usize;
    }
    place as u32
}

const GROUP: usize = 3;

#[batched(width = GROUP)]
fn width_by_name(#[shared] table: &[u32], at: usize) -> u32 {
    prefetch!(&table[at]);
    table[at]
}

#[test]
fn width__of_any_size_gives_the_same() {
    let plain = |at| width_of_caller::<1>(&NUMBERS, at);
    check(&PLACES, plain, |inputs, each| width_of_caller_batch::<1>(&NUMBERS, inputs, each));
    check(&PLACES, plain, |inputs, each| width_of_caller_batch::<4>(&NUMBERS, inputs, each));
    check(&PLACES, plain, |inputs, each| width_of_caller_batch::<64>(&NUMBERS, inputs, each));
    check(
        &PLACES,
        |at| width_by_name(&NUMBERS, at),
        |inputs, each| width_by_name_batch(&NUMBERS, inputs, each),
    );
}

#[batched]
fn several_inputs(
    #[shared] table: &[u32],
    (one, two): (usize, usize),
    #[shared] offset: u32,
    &third: &usize,
    mut fourth: u32,
) -> u32 {
    prefetch!(&table[one]);
    fourth += table[one];
    prefetch!(&table[two]);
    fourth + table[two] + offset + third as u32
}

#[test]
fn several_inputs__are_tuples() {
    let third = 7;
    let inputs = [((0, 1), &third, 9), ((2, 2), &third, 1)];
    check(
        &inputs,
        |(pair, third, fourth)| several_inputs(&NUMBERS, pair, 3, third, fourth),
        |inputs, each| several_inputs_batch(&NUMBERS, 3, inputs, each),
    );
}

#[batched]
fn unique_inputs(#[shared] table: &[u32], at: usize, place: &mut u32) -> u32 {
    prefetch!(&table[at]);
    *place = table[at];
    prefetch!(&table[*place as usize]);
    *place += table[*place as usize];
    *place
}

#[test]
fn unique_inputs__each_lane_writes_its_own() {
    let mut written = [0; PLACES.len()];
    unique_inputs_batch(&NUMBERS, PLACES.into_iter().zip(&mut written), |_, _| {});
    for (at, written) in PLACES.into_iter().zip(written) {
        let mut plain = 0;
        assert_eq!(unique_inputs(&NUMBERS, at, &mut plain), written);
    }
}

#[batched]
fn elided_lifetime(#[shared] table: &[String], at: usize) -> Cow<'_, str> {
    prefetch!(&*table[at]);
    Cow::Borrowed(&table[at])
}

#[batched]
fn elided_lifetime_of_input(#[shared] at: usize, text: &str) -> Option<&str> {
    prefetch!(text);
    text.split(' ').nth(at)
}

#[test]
fn elided_lifetimes__results_outlive_the_batch() {
    let table = ["one".to_owned(), "two".to_owned()];
    let mut kept = Vec::new();
    elided_lifetime_batch(&table, [1, 0, 1], |_, word| kept.push(word));
    assert_eq!(kept, ["two", "one", "two"]);
    let mut words = Vec::new();
    elided_lifetime_of_input_batch(1, ["a b", "c", "d e"], |_, word| words.push(word));
    assert_eq!(words, [Some("b"), None, Some("e")]);
}

#[batched]
fn impl_trait(
    #[shared] table: &impl AsRef<[u32]>,
    #[shared] change: impl Fn(&u32) -> u32,
    at: impl Into<usize> + Copy,
) -> u32 {
    prefetch!(&table.as_ref()[at.into()]);
    change(&table.as_ref()[at.into()])
}

#[test]
fn impl_trait__in_arguments() {
    check(
        &[3_u8, 0, 2],
        |at| impl_trait(&NUMBERS, |value| value + 1, at),
        |inputs, each| impl_trait_batch(&NUMBERS, |value| value + 1, inputs, each),
    );
}

#[derive(Debug)]
struct Table<T> {
    entries: Vec<T>,
}

impl<T: Copy + Debug + PartialEq> Table<T> {
    /// Returns the entry at a place.
    #[batched]
    #[must_use]
    pub(crate) fn entry(&self, at: usize) -> Option<&T> {
        prefetch!(self.entries.get(at));
        self.entries.get(at).filter(|entry| self.has(entry))
    }

    #[batched]
    fn shared_by_pointer(self: &Rc<Self>, at: usize) -> T {
        prefetch!(&self.entries[at]);
        self.entries[at]
    }

    fn has(&self, entry: &T) -> bool {
        self.entries.contains(entry)
    }
}

#[test]
fn methods__share_self() {
    let table = Rc::new(Table { entries: NUMBERS.to_vec() });
    check(&[1, 9, 0], |at| table.entry(at), |inputs, each| table.entry_batch(inputs, each));
    check(
        &PLACES,
        |at| table.shared_by_pointer(at),
        |inputs, each| table.shared_by_pointer_batch(inputs, each),
    );
}

/// # Safety
/// The place must be in the table.
#[batched]
unsafe fn unchecked(#[shared] table: &[u32], at: usize) -> u32 {
    // SAFETY: promised by the caller.
    let entry = unsafe { table.get_unchecked(at) };
    prefetch!(entry);
    *entry
}

#[test]
fn unsafe_function__has_an_unsafe_batch() {
    // SAFETY: the places are in the table.
    check(
        &PLACES,
        |at| unsafe { unchecked(&NUMBERS, at) },
        |inputs, each| unsafe { unchecked_batch(&NUMBERS, inputs, each) },
    );
}

#[batched]
fn shared_cell(#[shared] count: &Cell<u32>, #[shared] table: &[u32], at: usize) -> u32 {
    prefetch!(&table[at]);
    count.set(count.get() + 1);
    table[at]
}

#[test]
fn shared_cell__counts_all_lanes() {
    let count = Cell::new(0);
    shared_cell_batch(&count, &NUMBERS, PLACES, |_, _| {});
    assert_eq!(count.get(), PLACES.len() as u32);
}

#[batched]
#[inline(never)]
#[expect(clippy::needless_return, reason = "the attribute is what is tested")]
#[cfg(not(miri))]
fn attributes(#[shared] table: &[u32], at: usize) -> u32 {
    #[cfg(target_pointer_width = "16")]
    let at = at / 2;
    #[allow(clippy::let_and_return)]
    let entry = &table[at];
    prefetch!(entry);
    return *entry;
}

#[test]
#[cfg(not(miri))]
fn attributes__hold_for_the_batch() {
    check(
        &PLACES,
        |at| attributes(&NUMBERS, at),
        |inputs, each| attributes_batch(&NUMBERS, inputs, each),
    );
}

#[test]
fn function_in_a_function__is_batched() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Local(u32);

    #[batched]
    fn inner(#[shared] table: &[Local], at: usize) -> Local {
        prefetch!(&table[at]);
        table[at]
    }

    let table = NUMBERS.map(Local);
    check(&PLACES, |at| inner(&table, at), |inputs, each| inner_batch(&table, inputs, each));
}

#[test]
fn panic_in_a_lane__leaves_the_batch() {
    let caught = std::panic::catch_unwind(|| {
        width_by_name_batch(&NUMBERS, [0, 1, 99], |_, _| {});
    });
    assert!(caught.is_err());
}
