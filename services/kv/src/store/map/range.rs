//! Iteration over the keys, in order.

use super::Map;
use super::fences::Probe;
use super::page::Page;
use crate::api::Pair;

/// The pairs of a range, in order.
#[derive(Debug, Clone)]
pub struct Range<'a> {
    map: &'a Map,
    at: Position,
    until: Option<&'a [u8]>,
}

/// The place of an entry in an unchanged map.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Position {
    directory: usize,
    page: usize,
    entry: usize,
}

impl<'a> Iterator for Range<'a> {
    type Item = Pair<'a>;

    fn next(&mut self) -> Option<Pair<'a>> {
        let pair = self.map.pair(&mut self.at)?;
        if self.until.is_some_and(|until| pair.key >= until) {
            return None;
        }
        self.at = self.at.next();
        Some(pair)
    }
}

impl Map {
    /// The pairs from key `from` (included) to `until` (excluded).
    pub(crate) fn range<'a>(&'a self, from: &[u8], until: Option<&'a [u8]>) -> Range<'a> {
        let probe = Probe::new(from);
        let directory = self.fences.find(&probe);
        let page = self.directories[directory].find(&probe);
        let entry = self.directories[directory].pages()[page].place(from);
        Range { map: self, at: Position { directory, page, entry }, until }
    }

    /// The pair at a position, or the next pair if the position is the end of a page. Moves the position to the pair.
    pub(crate) fn pair(&self, at: &mut Position) -> Option<Pair<'_>> {
        loop {
            let page = self.page(at)?;
            if at.entry < page.len() {
                let (key, value) = (page.key(at.entry), page.value(at.entry));
                return Some(Pair { key, revision: page.revision(at.entry), value });
            }
            *at = Position { page: at.page + 1, entry: 0, ..*at };
        }
    }

    /// The page at a position, or the next page if the position is the end of a directory.
    fn page(&self, at: &mut Position) -> Option<&Page> {
        loop {
            let directory = self.directories.get(at.directory)?;
            if let Some(page) = directory.pages().get(at.page) {
                return Some(page);
            }
            *at = Position { directory: at.directory + 1, page: 0, entry: 0 };
        }
    }
}

impl Position {
    /// The position after this entry.
    pub(crate) fn next(self) -> Position {
        Position { entry: self.entry + 1, ..self }
    }
}
