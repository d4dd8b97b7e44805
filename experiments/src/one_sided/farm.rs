//! FaRM's table (HERD §5.1.2; Dragojević et al., NSDI 2014): a variant of hopscotch hashing with neighbourhoods of six places.
//!
//! The client reads the whole neighbourhood of a key by one READ, with the values (*inline*), or with pointers to them. As in HERD's comparison,
//! the versions of FaRM's cache lines are left out.

use std::sync::Arc;

use petrel::Status;
use petrel_command::failure::Failure;
use petrel_transport::verbs::{AccessError, Card};

use super::{Carried, Gets, KEY_BYTES, Key, Remote, key_of, memory, place_of, value_of};

/// Places of a neighbourhood.
const NEIGHBOURS: usize = 6;

/// The share of places that are taken, in percent: in fuller tables some items find no place in their neighbourhoods. FaRM keeps such items
/// in further blocks, which this table leaves out.
const FILLED: usize = 25;

/// Bytes of a pointer: the offset of a value, plus 1, so that a place without an item is zero.
const POINTER_BYTES: usize = 8;

/// Places that are searched for a free one, before the table counts as full.
const SEARCH_MAX: usize = 10_000;

fn home_of(key: &Key, places: usize) -> usize {
    place_of(key, 0, places)
}

/// Returns the item of each place: the items of a home lie in its neighbourhood, which does not wrap around.
fn arrange(items: usize, places: usize) -> Result<Vec<Option<u64>>, Failure> {
    let mut table: Vec<Option<u64>> = vec![None; places + SEARCH_MAX];
    let full = || Failure::new(Status::ResourceExhausted, "FaRM's table is full");
    for item in 0..items as u64 {
        let home = home_of(&key_of(item), places);
        let mut free = (home..table.len())
            .take(SEARCH_MAX)
            .find(|place| table[*place].is_none())
            .ok_or_else(full)?;
        while free >= home + NEIGHBOURS {
            // The first item before the free place whose neighbourhood has the free place moves there.
            let moved = (free + 1 - NEIGHBOURS..free).find(|place| {
                let item = table[*place].expect("the first free place was found");
                home_of(&key_of(item), places) + NEIGHBOURS > free
            });
            let moved = moved.ok_or_else(full)?;
            table[free] = table[moved].take();
            free = moved;
        }
        table[free] = Some(item);
    }
    Ok(table)
}

/// The place of an item's value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Values {
    Inline,
    ByPointer,
}

pub(super) struct Client {
    remote: Remote,
    places: usize,
    values: Values,
    value_bytes: usize,
}

impl Client {
    /// Fills a table of items with their values.
    pub(super) fn inline(card: &Arc<Card>, items: usize, value: usize) -> Result<Self, Failure> {
        Self::open(card, items, value, Values::Inline)
    }

    /// Fills a table of keys with pointers to values.
    pub(super) fn by_pointer(
        card: &Arc<Card>,
        items: usize,
        value: usize,
    ) -> Result<Self, Failure> {
        Self::open(card, items, value, Values::ByPointer)
    }

    fn open(
        card: &Arc<Card>,
        items: usize,
        value_bytes: usize,
        values: Values,
    ) -> Result<Self, Failure> {
        let places = items * 100 / FILLED;
        let table = arrange(items, places)?;
        let place_bytes = place_bytes(values, value_bytes);
        let behind = (table.len() * place_bytes).next_multiple_of(8);
        let extents = if values == Values::Inline { 0 } else { items * value_bytes };
        let memory = memory(behind + extents)?;
        for (place, item) in table.into_iter().enumerate() {
            let Some(item) = item else { continue };
            let (at, bytes) = ((place * place_bytes) as u64, value_of(item, value_bytes));
            memory.write(at, &key_of(item));
            let content = at + KEY_BYTES as u64;
            match values {
                Values::Inline => memory.write(content, &bytes),
                Values::ByPointer => {
                    let offset = (behind + item as usize * value_bytes) as u64;
                    memory.write(offset, &bytes);
                    memory.write(content, &(offset + 1).to_le_bytes());
                }
            }
        }
        let remote = Remote::connect(card, &Arc::new(memory))?;
        Ok(Self { remote, places, values, value_bytes })
    }
}

fn place_bytes(values: Values, value_bytes: usize) -> usize {
    KEY_BYTES + if values == Values::Inline { value_bytes } else { POINTER_BYTES }
}

impl Gets for Client {
    fn get(&mut self, key: &Key) -> Result<Option<Vec<u8>>, AccessError> {
        let bytes = place_bytes(self.values, self.value_bytes);
        let mut neighbours = vec![0; NEIGHBOURS * bytes];
        self.remote.read((home_of(key, self.places) * bytes) as u64, &mut neighbours)?;
        let Some(place) = neighbours.chunks_exact(bytes).find(|place| place[..KEY_BYTES] == *key)
        else {
            return Ok(None);
        };
        let content = &place[KEY_BYTES..];
        if self.values == Values::Inline {
            return Ok(Some(content.to_vec()));
        }
        let pointer = u64::from_le_bytes(std::array::from_fn(|at| content[at]));
        let Some(offset) = pointer.checked_sub(1) else { return Ok(None) };
        let mut value = vec![0; self.value_bytes];
        self.remote.read(offset, &mut value)?;
        Ok(Some(value))
    }

    fn carried(&self) -> Carried {
        self.remote.carried
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrange__leaves_each_item_in_its_neighbourhood() {
        let (items, places) = (30_000, 30_000 * 100 / FILLED);
        let table = arrange(items, places).unwrap();
        let mut seen = 0;
        for (place, item) in table.iter().enumerate() {
            let Some(item) = item else { continue };
            let home = home_of(&key_of(*item), places);
            assert!((home..home + NEIGHBOURS).contains(&place), "item {item} of {home} at {place}");
            seen += 1;
        }
        assert_eq!(seen, items);
    }
}
