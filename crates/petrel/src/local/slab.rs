//! A table that reuses places but not keys: a stale key finds nothing.

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
    value: Option<T>,
}

/// The table.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Inserts a value.
    pub(crate) fn insert(&mut self, value: T) -> Key {
        self.insert_with(|_| value)
    }

    /// Inserts a value made from its key.
    pub(crate) fn insert_with(&mut self, value: impl FnOnce(Key) -> T) -> Key {
        if let Some(index) = self.free.pop() {
            let place = &mut self.places[index as usize];
            let key = Key::new(index as usize, place.generation);
            place.value = Some(value(key));
            return key;
        }
        let key = Key::new(self.places.len(), 0);
        self.places.push(Place { generation: 0, value: Some(value(key)) });
        key
    }

    /// Returns the value of a key, unless it was removed.
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let place = self.places.get(key.index())?;
        if place.generation == key.generation() { place.value.as_ref() } else { None }
    }

    /// Returns the value of a key, unless it was removed, for changes.
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let place = self.places.get_mut(key.index())?;
        if place.generation == key.generation() { place.value.as_mut() } else { None }
    }

    /// Removes the value of a key.
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let place = self.places.get_mut(key.index())?;
        if place.generation != key.generation() {
            return None;
        }
        let value = place.value.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(key.index() as u32);
        Some(value)
    }

    /// Returns the number of values.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
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
        self.free.clear();
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
