//! A table that reuses places but not keys: a stale key finds nothing.

use std::mem;

/// The name of an entry: the place, and the place's number of earlier uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(u64);

impl Key {
    fn new(index: usize, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | index as u64)
    }

    fn index(self) -> usize {
        self.0 as u32 as usize
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Returns the key as a number that can travel with a call.
    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    /// For a free place the next one in the list, or [`NONE`].
    next_free: u32,
    value: Option<T>,
}

/// Stands for no place.
const NONE: u32 = u32::MAX;

/// The table.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<Place<T>>,
    /// The first of the list of free places, or [`NONE`].
    free: u32,
    len: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: NONE, len: 0 }
    }
}

impl<T> Slab<T> {
    /// Inserts a value.
    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> Key {
        self.insert_with(|_| value).0
    }

    /// Inserts a value made from its key. It is made in its place: a large value is not moved.
    #[inline(always)]
    pub(crate) fn insert_with(&mut self, value: impl FnOnce(Key) -> T) -> (Key, &mut T) {
        if self.free == NONE {
            self.add_place();
        }
        let index = self.free as usize;
        let place = &mut self.places[index];
        let key = Key::new(index, place.generation);
        let before = place.value.replace(value(key));
        debug_assert!(before.is_none(), "a free place has no value");
        // No instruction is spent on dropping nothing.
        mem::forget(before);
        self.free = place.next_free;
        self.len += 1;
        (key, place.value.as_mut().expect("the value was put there"))
    }

    #[cold]
    fn add_place(&mut self) {
        self.free = self.places.len() as u32;
        self.places.push(Place { generation: 0, next_free: NONE, value: None });
    }

    /// Returns the value of a key, unless it was removed.
    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let place = self.places.get(key.index())?;
        if place.generation == key.generation() { place.value.as_ref() } else { None }
    }

    /// Returns the value of a key for changes, unless it was removed.
    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let place = self.places.get_mut(key.index())?;
        if place.generation == key.generation() { place.value.as_mut() } else { None }
    }

    /// Removes the value of a key.
    #[inline]
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let place = self.places.get_mut(key.index())?;
        if place.generation != key.generation() {
            return None;
        }
        let value = place.value.take()?;
        place.generation = place.generation.wrapping_add(1);
        place.next_free = mem::replace(&mut self.free, key.index() as u32);
        self.len -= 1;
        Some(value)
    }

    /// Removes the value of a key, of which `take` keeps a part. The rest is dropped in its place: a large value is not
    /// moved.
    #[inline(always)]
    pub(crate) fn remove_to<R>(&mut self, key: Key, take: impl FnOnce(&mut T) -> R) -> Option<R> {
        let place = self.places.get_mut(key.index())?;
        if place.generation != key.generation() {
            return None;
        }
        let taken = take(place.value.as_mut()?);
        place.value = None;
        place.generation = place.generation.wrapping_add(1);
        place.next_free = mem::replace(&mut self.free, key.index() as u32);
        self.len -= 1;
        Some(taken)
    }

    /// Returns the number of values.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the keys of all values.
    pub(crate) fn keys(&self) -> Vec<Key> {
        let key = |(index, place): (usize, &Place<T>)| {
            place.value.is_some().then(|| Key::new(index, place.generation))
        };
        self.places.iter().enumerate().filter_map(key).collect()
    }

    /// Removes all values.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        (self.free, self.len) = (NONE, 0);
        self.places.drain(..).filter_map(|place| place.value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_a_removed_value_names_nothing_though_its_place_is_used_again() {
        let mut slab = Slab::default();
        let first = slab.insert('a');
        let other = slab.insert('b');
        assert_eq!((slab.remove(first), slab.remove(first)), (Some('a'), None));
        let second = slab.insert('c');
        assert_eq!(second.index(), first.index());
        assert_eq!(slab.get_mut(first), None);
        assert_eq!(slab.get_mut(second), Some(&mut 'c'));
        assert_eq!(slab.get_mut(other), Some(&mut 'b'));
        assert_eq!((slab.len(), slab.keys()), (2, vec![second, other]));
        assert_eq!(Key::from_bits(second.to_bits()), second);
    }
}
