//! A list of bounded length without heap memory.
//!
//! The list holds the lanes that stopped at a mark. `places[..len]` are initialised, all others are not. Both methods keep
//! this rule: `push` writes the place `len` before it counts the place, and `drain` sets `len` to 0 before it moves the first
//! value out, so that no place is read twice even if the iterator is forgotten. The list drops no values, because the
//! element type must not need it.

use core::mem::{MaybeUninit, needs_drop};

/// Up to `N` values without drop code, in the order of the pushes.
#[derive(Debug)]
pub struct List<T, const N: usize> {
    places: [MaybeUninit<T>; N],
    len: usize,
}

impl<T, const N: usize> List<T, N> {
    /// Returns an empty list.
    #[inline(always)]
    #[allow(clippy::new_without_default, reason = "generated code alone makes lists")]
    pub fn new() -> Self {
        const { assert!(!needs_drop::<T>(), "a local that is kept across a mark must not need drop") };
        Self { places: [const { MaybeUninit::uninit() }; N], len: 0 }
    }

    /// Appends a value.
    ///
    /// # Panics
    /// If the list is full.
    #[inline(always)]
    pub fn push(&mut self, value: T) {
        self.places[self.len].write(value);
        self.len += 1;
    }

    /// Takes all values out, in order.
    #[inline(always)]
    pub fn drain(&mut self) -> Drain<'_, T> {
        let len = core::mem::take(&mut self.len);
        Drain { places: self.places[..len].iter() }
    }
}

/// The values of a list, moved out in order.
#[derive(Debug)]
pub struct Drain<'a, T> {
    places: core::slice::Iter<'a, MaybeUninit<T>>,
}

impl<T> Iterator for Drain<'_, T> {
    type Item = T;

    #[inline(always)]
    fn next(&mut self) -> Option<T> {
        let place = self.places.next()?;
        // SAFETY: the places are those below the list's former length, which are initialised. The list has forgotten the
        // values, and the iterator passes every place once: no value is moved out twice.
        Some(unsafe { place.assume_init_read() })
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::List;

    #[test]
    fn drain__gives_the_values_in_order_and_empties_the_list() {
        let mut list = List::<_, 3>::new();
        list.push((1, "one"));
        list.push((2, "two"));
        assert_eq!(list.drain().collect::<Vec<_>>(), [(1, "one"), (2, "two")]);
        assert_eq!(list.drain().count(), 0);
    }

    #[test]
    fn drain__left_midway_gives_no_value_twice() {
        let mut list = List::<_, 2>::new();
        list.push(1);
        list.push(2);
        let mut drain = list.drain();
        assert_eq!(drain.next(), Some(1));
        list.push(3);
        assert_eq!(list.drain().collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn drain__moves_unique_references_out() {
        let (mut first, mut second) = (1, 2);
        let mut list = List::<_, 2>::new();
        list.push(&mut first);
        list.push(&mut second);
        list.drain().for_each(|value| *value += 10);
        assert_eq!((first, second), (11, 12));
    }

    #[test]
    #[should_panic(expected = "index out of bounds")]
    fn push__into_a_full_list_panics() {
        let mut list = List::<_, 1>::new();
        list.push(1);
        list.push(2);
    }
}
