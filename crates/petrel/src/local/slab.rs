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
    /// The key of the value, which one comparison finds. In a free place: the generation of the next value, above the next place in the
    /// list of free places, or [`NONE`].
    name: Key,
    value: Option<T>,
}

impl<T> Place<T> {
    /// Makes the place one of the free ones, before the place `next`.
    fn free(&mut self, next: u32) {
        self.name = Key::new(next as usize, self.name.generation().wrapping_add(1));
    }
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

/// A free place of a table.
pub(crate) struct Vacant<'a, T> {
    place: &'a mut Place<T>,
    free: &'a mut u32,
    len: &'a mut usize,
    key: Key,
}

impl<'a, T> Vacant<'a, T> {
    #[inline(always)]
    pub(crate) fn key(&self) -> Key {
        self.key
    }

    /// Inserts a value. A value made by the caller here is made in place.
    #[inline(always)]
    pub(crate) fn insert(self, value: T) -> &'a mut T {
        let Self { place, free, len, key } = self;
        (*free, *len) = (place.name.0 as u32, *len + 1);
        place.name = key;
        debug_assert!(place.value.is_none(), "a free place has no value");
        // No instruction is spent on dropping nothing.
        mem::forget(place.value.replace(value));
        place.value.as_mut().expect("the value was put there")
    }
}

/// A place of a table with its value.
pub(crate) struct Occupied<'a, T> {
    place: &'a mut Place<T>,
    free: &'a mut u32,
    len: &'a mut usize,
    index: u32,
}

impl<T> Occupied<'_, T> {
    #[inline(always)]
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.place.value.as_mut().expect("an occupied place has a value")
    }

    /// Removes a value that has nothing to drop: no instruction is spent on it, and a large value is not moved.
    #[inline(always)]
    pub(crate) fn forget(self) {
        let Self { place, free, len, index } = self;
        mem::forget(place.value.take());
        place.free(mem::replace(free, index));
        *len -= 1;
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: NONE, len: 0 }
    }
}

impl<T> Slab<T> {
    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> Key {
        let vacant = self.vacant();
        let key = vacant.key();
        vacant.insert(value);
        key
    }

    /// Returns a free place, to insert a value made from its key.
    #[inline(always)]
    pub(crate) fn vacant(&mut self) -> Vacant<'_, T> {
        if self.free == NONE {
            self.add_place();
        }
        let Self { places, free, len } = self;
        let index = *free as usize;
        let place = &mut places[index];
        let key = Key::new(index, place.name.generation());
        Vacant { place, free, len, key }
    }

    #[cold]
    fn add_place(&mut self) {
        assert!(self.places.len() < NONE as usize, "a key has 32 bits for its place");
        self.free = self.places.len() as u32;
        self.places.push(Place { name: Key::new(NONE as usize, 0), value: None });
    }

    /// Returns the value of a key, unless it was removed.
    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let place = self.places.get(key.index())?;
        if place.name == key { place.value.as_ref() } else { None }
    }

    /// Returns the value of a key for changes, unless it was removed.
    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let place = self.places.get_mut(key.index())?;
        if place.name == key { place.value.as_mut() } else { None }
    }

    #[inline]
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let place = self.places.get_mut(key.index())?;
        if place.name != key {
            return None;
        }
        let value = place.value.take()?;
        place.free(mem::replace(&mut self.free, key.index() as u32));
        self.len -= 1;
        Some(value)
    }

    /// Returns the place of a key, unless its value was removed.
    #[inline(always)]
    pub(crate) fn occupied(&mut self, key: Key) -> Option<Occupied<'_, T>> {
        let Self { places, free, len } = self;
        let place = places.get_mut(key.index())?;
        let is_there = place.name == key && place.value.is_some();
        is_there.then_some(Occupied { place, free, len, index: key.index() as u32 })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn keys(&self) -> Vec<Key> {
        let key = |place: &Place<T>| place.value.as_ref().map(|_| place.name);
        let keys: Vec<_> = self.places.iter().filter_map(key).collect();
        assert_eq!(keys.len(), self.len, "the values of a table are counted");
        keys
    }

    pub(crate) fn drain(&mut self) -> Vec<T> {
        let values: Vec<_> = self.places.drain(..).filter_map(|place| place.value).collect();
        assert_eq!(values.len(), self.len, "a table gives back the values that it has counted");
        (self.free, self.len) = (NONE, 0);
        values
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

    #[test]
    fn forget__gives_the_place_to_the_next_and_drops_nothing() {
        let mut slab = Slab::default();
        let value = std::rc::Rc::new(());
        let keys = [(); 3].map(|()| slab.insert(Some(std::rc::Rc::clone(&value))));
        slab.occupied(keys[1]).unwrap().get_mut().take();
        slab.occupied(keys[1]).unwrap().forget();
        assert_eq!((slab.len(), std::rc::Rc::strong_count(&value)), (2, 3));
        assert!(slab.occupied(keys[1]).is_none());
        assert!(slab.get(keys[1]).is_none() && slab.remove(keys[1]).is_none());
        assert!(slab.remove(keys[0]).is_some());
        let vacant = slab.vacant();
        let key = vacant.key();
        assert_eq!((key.index(), key == keys[0]), (0, false), "the place that was freed last");
        vacant.insert(None);
        assert_eq!(slab.len(), 2);
        let next = [(); 2].map(|()| slab.insert(None).index());
        assert_eq!((next, slab.len()), ([1, 3], 4));
    }

    panics! {
        keys__of_a_table_with_another_count: "the values of a table are counted" => {
            let mut slab = Slab::default();
            slab.insert('a');
            slab.len = 2;
            slab.keys();
        };
    }
}
