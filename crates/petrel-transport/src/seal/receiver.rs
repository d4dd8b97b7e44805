//! The receiving end of a direction.

use petrel_planted::planted;

use super::head::SealedDatagram;
use super::{DatagramKey, Epochs, NUMBER_END, TAG_BYTES};

/// Numbers up to the highest accepted that a receiver remembers.
const WINDOW_NUMBERS: u64 = 1_024;

const WORDS: usize = (WINDOW_NUMBERS / 64) as usize;

/// Why a sealed datagram is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The number was accepted before, is lower than all remembered numbers, or has no key.
    Replayed,
    /// It does not open, or too many have not.
    Forged,
}

/// Opens the datagrams of a direction, each once.
#[derive(Debug)]
pub(crate) struct Receiver {
    epochs: Epochs,
    /// The epoch of the highest accepted number.
    epoch: u64,
    /// The keys of the epoch before, of the epoch, and, once a datagram had asked for it, of the epoch after.
    before: Option<Box<dyn DatagramKey>>,
    current: Box<dyn DatagramKey>,
    after: Option<Box<dyn DatagramKey>>,
    window: Window,
    /// Datagrams that did not open.
    forgeries: u64,
    forgeries_max: u64,
}

impl Receiver {
    pub(crate) fn new(key: Box<dyn DatagramKey>, epochs: Epochs) -> Self {
        let forgeries_max = key.forgeries_max();
        let window = Window { end: 0, accepted: [0; WORDS] };
        Self {
            epochs,
            epoch: 0,
            before: None,
            current: key,
            after: None,
            window,
            forgeries: 0,
            forgeries_max,
        }
    }

    /// Returns true if so many datagrams were forged that the link must end. No datagram is opened any more.
    #[inline]
    pub(crate) fn is_ended(&self) -> bool {
        self.forgeries >= self.forgeries_max
    }

    /// Opens a datagram in place, and returns the plain datagram. After a refusal the receiver is as before, except for the
    /// number of forgeries.
    pub(crate) fn open<'a>(&mut self, sealed: SealedDatagram<'a>) -> Result<&'a [u8], Refusal> {
        let number = sealed.number();
        if self.is_ended() {
            return Err(Refusal::Forged);
        }
        if !self.window.is_new(number) {
            return Err(Refusal::Replayed);
        }
        let key = self.key_of(number).ok_or(Refusal::Replayed)?;
        let SealedDatagram { head, body } = sealed;
        if !key.open(number, head, body) {
            self.forgeries += 1;
            return Err(Refusal::Forged);
        }
        self.note_epoch(self.epochs.of(number));
        self.window.accept(number);
        let (plain, _tag) = body.split_at(body.len() - TAG_BYTES);
        Ok(plain)
    }

    /// The key of a number's epoch. The key of the epoch after is derived once, however many datagrams claim to be of it.
    #[inline]
    fn key_of(&mut self, number: u64) -> Option<&dyn DatagramKey> {
        if number >= NUMBER_END {
            return None;
        }
        let epoch = self.epochs.of(number);
        if epoch == self.epoch {
            return Some(&*self.current);
        }
        if epoch == self.epoch + 1 {
            let current = &self.current;
            return Some(&**self.after.get_or_insert_with(|| current.next()));
        }
        let is_before = epoch + 1 == self.epoch || keeps_first_epoch();
        self.before.as_deref().filter(|_| is_before)
    }

    /// Moves to the epoch of an opened datagram, if it is the one after.
    #[inline]
    fn note_epoch(&mut self, epoch: u64) {
        if epoch <= self.epoch {
            return;
        }
        let after = self.after.take().expect("the datagram was opened by this key");
        assert!(epoch == self.epoch + 1, "epochs follow one another");
        self.epoch = epoch;
        let ended = std::mem::replace(&mut self.current, after);
        if self.before.is_none() || !keeps_first_epoch() {
            self.before = Some(ended);
        }
    }
}

/// Returns true where the planted defect is on: the key of the first epoch is kept for ever.
#[inline(always)]
fn keeps_first_epoch() -> bool {
    planted("seal_first_epoch_never_ends")
}

/// The accepted numbers among the numbers up to the highest.
#[derive(Debug)]
struct Window {
    /// The number behind the highest accepted number.
    end: u64,
    /// A ring of bits; a number's place is its remainder.
    accepted: [u64; WORDS],
}

impl Window {
    /// Returns true if a number can be accepted.
    #[inline]
    fn is_new(&self, number: u64) -> bool {
        let (word, bit) = Self::place_of(number);
        number >= self.end
            || (self.end - number <= WINDOW_NUMBERS
                && (self.accepted[word] & bit == 0 || planted("seal_number_accepted_again")))
    }

    /// Accepts a new number, and forgets numbers that are too low then.
    fn accept(&mut self, number: u64) {
        let (word, bit) = Self::place_of(number);
        if number < self.end {
            assert!(self.is_new(number), "each number is accepted once");
        } else {
            match number - self.end {
                WINDOW_NUMBERS.. => self.accepted = [0; WORDS],
                _ => (self.end..number).for_each(|skipped| self.forget(skipped)),
            }
            self.end = number + 1;
        }
        self.accepted[word] |= bit;
    }

    fn forget(&mut self, number: u64) {
        let (word, bit) = Self::place_of(number);
        self.accepted[word] &= !bit;
    }

    #[inline]
    fn place_of(number: u64) -> (usize, u64) {
        ((number % WINDOW_NUMBERS / 64) as usize, 1 << (number % 64))
    }
}

#[cfg(test)]
mod tests;
