//! Places in the order of their last use: a linked list in an array, with a few steps per use.

const NONE: u32 = u32::MAX;

/// The places 0, 1, 2 and so on, in the order of their last use.
#[derive(Debug)]
pub(super) struct Recency {
    links: Vec<Link>,
    oldest: u32,
    newest: u32,
}

#[derive(Debug, Clone, Copy)]
struct Link {
    older: u32,
    newer: u32,
}

impl Default for Recency {
    fn default() -> Recency {
        Recency { links: Vec::new(), oldest: NONE, newest: NONE }
    }
}

impl Recency {
    /// Adds a place as the most recently used place.
    pub(super) fn push(&mut self) -> u32 {
        let place = self.links.len() as u32;
        self.links.push(Link { older: NONE, newer: NONE });
        self.append(place);
        place
    }

    /// Marks a place as most recently used.
    #[inline]
    pub(super) fn touch(&mut self, place: u32) {
        if place != self.newest {
            self.unlink(place);
            self.append(place);
        }
    }

    /// The least recently used place. At least one place must exist.
    pub(super) fn oldest(&self) -> u32 {
        self.oldest
    }

    pub(super) fn oldest_first(&self) -> impl Iterator<Item = u32> {
        std::iter::successors(self.named(self.oldest), |place| {
            self.named(self.links[*place as usize].newer)
        })
    }

    /// Removes a place from the list. It must not be the newest.
    fn unlink(&mut self, place: u32) {
        let Link { older, newer } = self.links[place as usize];
        self.links[newer as usize].older = older;
        match older {
            NONE => self.oldest = newer,
            older => self.links[older as usize].newer = newer,
        }
    }

    fn append(&mut self, place: u32) {
        self.links[place as usize] = Link { older: self.newest, newer: NONE };
        match self.newest {
            NONE => self.oldest = place,
            newest => self.links[newest as usize].newer = place,
        }
        self.newest = place;
    }

    fn named(&self, place: u32) -> Option<u32> {
        (place != NONE).then_some(place)
    }
}
