//! The memory of hash tables.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

/// Entries for which a table always keeps room.
pub(crate) const TABLE_ROOM_MIN: usize = 1_024;

/// Frees memory of a table with few entries left. At least three quarters of the entries have gone each time, for a
/// constant amortised cost per entry.
pub(crate) fn shrink<K: Eq + Hash, V, H: BuildHasher>(table: &mut HashMap<K, V, H>) {
    if table.capacity() > TABLE_ROOM_MIN && table.len() < table.capacity() / 8 {
        table.shrink_to(TABLE_ROOM_MIN.max(2 * table.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The room of a table before and after shrinking, with room for `room` and this many entries.
    fn shrunk(room: usize, entries: usize) -> (usize, usize) {
        let mut table: HashMap<usize, usize> = HashMap::with_capacity(room);
        table.extend((0..entries).zip(0..));
        let before = table.capacity();
        shrink(&mut table);
        assert!(table.capacity() >= entries && table.len() == entries);
        (before, table.capacity())
    }

    #[test]
    fn shrink__frees_memory_of_a_table_with_few_entries_left() {
        let (room, _) = shrunk(20_000, 0);
        assert_eq!(shrunk(room, room / 8), (room, room), "an eighth of its entries are there");
        let (_, left) = shrunk(room, room / 8 - 1);
        assert!((2 * (room / 8 - 1)..room / 2).contains(&left), "{left} of {room}");
        let (_, left) = shrunk(room, 0);
        assert!((TABLE_ROOM_MIN..2 * TABLE_ROOM_MIN).contains(&left), "{left} of {room}");
        let (few, left) = shrunk(TABLE_ROOM_MIN / 2, 0);
        assert_eq!(left, few, "few need room again soon");
    }
}
