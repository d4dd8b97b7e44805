//! A table whose places are used again, and whose keys are not: a late word about something that has
//! ended finds nothing.

/// Names an entry: its place, and how often that was used before.
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

    /// As a number that can travel with a call.
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
    /// Takes a value in.
    pub(crate) fn insert(&mut self, value: T) -> Key {
        self.insert_with(|_| value)
    }

    /// Takes a value in that knows its key.
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

    /// The value of a key, unless it was removed.
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let place = self.places.get(key.index())?;
        if place.generation == key.generation() { place.value.as_ref() } else { None }
    }

    /// The value of a key, unless it was removed, to change it.
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let place = self.places.get_mut(key.index())?;
        if place.generation == key.generation() { place.value.as_mut() } else { None }
    }

    /// Takes the value of a key out.
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

    /// How many values there are.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// The keys of all values.
    pub(crate) fn keys(&self) -> Vec<Key> {
        let key = |(index, place): (usize, &Place<T>)| {
            place.value.is_some().then(|| Key::new(index, place.generation))
        };
        self.places.iter().enumerate().filter_map(key).collect()
    }

    /// Takes all values out.
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
