//! The comparison of a batch with its plain function.

use std::fmt::Debug;

use proptest::prelude::*;

/// The numbers of inputs: none, one, and those around and far beyond the groups.
const COUNTS: [usize; 7] = [0, 1, 2, 31, 32, 33, 1000];

/// A table of places in the table.
pub(crate) fn tables() -> impl Strategy<Value = Vec<u32>> {
    (1_usize..40).prop_flat_map(|len| prop::collection::vec(0..len as u32, len))
}

/// Returns the first result that differs.
pub(crate) fn compare<R: PartialEq + Debug>(
    table: &[u32],
    plain: impl Fn(usize) -> R,
    batch: impl Fn(&mut dyn Iterator<Item = usize>, &mut dyn FnMut(usize, R)),
) -> Result<(), TestCaseError> {
    for count in COUNTS {
        let input = |index: usize| (index * 7 + index / 3) % table.len();
        let mut results: Vec<Option<R>> = (0..count).map(|_| None).collect();
        batch(&mut (0..count).map(input), &mut |index, result| {
            assert!(results[index].replace(result).is_none(), "input {index} has two results");
        });
        for (index, result) in results.into_iter().enumerate() {
            prop_assert_eq!(result, Some(plain(input(index))), "input {} of {}", index, count);
        }
    }
    Ok(())
}

/// Tests that functions of a table and a place give the same results as batches.
macro_rules! same {
    ($($plain:ident $batch:ident)*) => {
        mod batch_is_same {
            proptest::proptest! {
                #![proptest_config(proptest::prelude::ProptestConfig::with_cases(40))]
                $(
                    #[test]
                    fn $plain(table in crate::same::tables()) {
                        crate::same::compare(
                            &table,
                            |at| super::$plain(&table, at),
                            |inputs, each| super::$batch(&table, inputs, each),
                        )?;
                    }
                )*
            }
        }
    };
}

pub(crate) use same;
