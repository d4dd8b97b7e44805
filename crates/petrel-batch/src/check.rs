use core::fmt::Debug;

/// The most inputs of a check: twice the greatest group.
const INPUTS_MAX: usize = 128;

/// Asserts that a batch gives the results of its plain function, for the first 0, 1, 2, … inputs, at most 128.
///
/// For the property tests of a program's own batched functions.
///
/// ```
/// # use petrel_batch::{batched, check};
/// #[batched]
/// fn entry(#[shared] table: &[u32], at: usize) -> Option<u32> {
///     prefetch!(table.as_ptr().wrapping_add(at));
///     table.get(at).copied()
/// }
///
/// let table = [5, 6, 7];
/// let inputs = [2, 0, 9];
/// check(&inputs, |at| entry(&table, at), |inputs, each| entry_batch(&table, inputs, each));
/// ```
///
/// # Panics
/// If a result differs, is missing, or comes twice.
pub fn check<I, R, P, B>(inputs: &[I], mut plain: P, mut batch: B)
where
    I: Clone,
    R: PartialEq + Debug,
    P: FnMut(I) -> R,
    B: FnMut(core::iter::Cloned<core::slice::Iter<'_, I>>, &mut dyn FnMut(usize, R)),
{
    for count in 0..=inputs.len().min(INPUTS_MAX) {
        let inputs = &inputs[..count];
        let mut seen = [false; INPUTS_MAX];
        batch(inputs.iter().cloned(), &mut |index, result| {
            assert!(
                !core::mem::replace(&mut seen[index], true),
                "input {index} of {count} has two results"
            );
            assert_eq!(result, plain(inputs[index].clone()), "input {index} of {count}");
        });
        let missing = seen[..count].iter().position(|seen| !seen);
        assert_eq!(missing, None, "an input of {count} has no result");
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::{INPUTS_MAX, check};

    #[test]
    fn check__passes_the_first_0_to_128_inputs() {
        let mut counts = Vec::new();
        check(
            &[0; INPUTS_MAX + 1],
            |_| (),
            |inputs, each| {
                counts.push(inputs.len());
                (0..inputs.len()).for_each(|index| each(index, ()));
            },
        );
        assert!(counts.into_iter().eq(0..=INPUTS_MAX));
    }

    #[test]
    #[should_panic(expected = "input 1 of 2")]
    fn check__of_a_different_result_panics() {
        check(
            &[1, 2],
            |input| input,
            |inputs, each| {
                inputs.enumerate().for_each(|(index, input)| each(index, input.min(1)));
            },
        );
    }

    #[test]
    #[should_panic(expected = "has two results")]
    fn check__of_a_second_result_panics() {
        check(
            &[1],
            |_| (),
            |inputs, each| inputs.for_each(|_| [0, 0].into_iter().for_each(|at| each(at, ()))),
        );
    }

    #[test]
    #[should_panic(expected = "has no result")]
    fn check__of_a_missing_result_panics() {
        check(&[1], |_| (), |_, _| {});
    }
}
