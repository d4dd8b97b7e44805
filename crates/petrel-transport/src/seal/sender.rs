//! The sending end of a direction.

use super::head::encode;
use super::{DatagramKey, Epochs, HEAD_BYTES, NUMBER_END, OVERHEAD_BYTES};

/// Numbers before [`NUMBER_END`] from which a sender counts as ended: bursts that were begun before still have numbers. A
/// burst has less than a thousand datagrams, and one for each of at most 32 source ports.
const LAST_NUMBERS: u64 = 1 << 20;

/// Numbers and seals the datagrams of a direction.
#[derive(Debug)]
pub(crate) struct Sender {
    /// The receiver's number of the link.
    path: u32,
    epochs: Epochs,
    epoch: u64,
    key: Box<dyn DatagramKey>,
    /// Greater than the numbers of all datagrams so far.
    next: u64,
}

impl Sender {
    pub(crate) fn new(path: u32, key: Box<dyn DatagramKey>, epochs: Epochs) -> Self {
        Self { path, epochs, epoch: 0, key, next: 0 }
    }

    /// Returns true if the link must end, because its numbers do. No further burst may begin.
    #[inline]
    pub(crate) fn is_ended(&self) -> bool {
        self.next >= NUMBER_END - LAST_NUMBERS
    }

    /// Seals a datagram in place: the plain datagram is in the middle, with [`HEAD_BYTES`] before it and room for the tag behind.
    ///
    /// # Panics
    /// When all numbers are used up, or the datagram is empty.
    pub(crate) fn seal(&mut self, datagram: &mut [u8]) {
        let number = self.next;
        assert!(number < NUMBER_END, "the link ends before its numbers do");
        assert!(datagram.len() > OVERHEAD_BYTES, "a datagram is not empty");
        // Before the key sees the number: if the key panics, the number counts as used.
        self.next = number + 1;
        let epoch = self.epochs.of(number);
        if epoch != self.epoch {
            assert!(epoch == self.epoch + 1, "numbers follow one another");
            (self.epoch, self.key) = (epoch, self.key.next());
        }
        let (head, body) = datagram.split_at_mut(HEAD_BYTES);
        let bytes = encode(self.path, number);
        head.copy_from_slice(&bytes);
        self.key.seal(number, &bytes, body);
    }

    /// Continues with another number of the current or the next epoch.
    #[cfg(test)]
    pub(crate) fn skip_to(&mut self, number: u64) {
        assert!(number >= self.next);
        (self.next, self.epoch) = (number, self.epochs.of(number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::TestKey;

    fn sender(epochs: Epochs) -> Sender {
        Sender::new(5, Box::new(TestKey::new(7)), epochs)
    }

    #[test]
    fn seal__numbers_datagrams_one_by_one() {
        let mut sender = sender(Epochs::STANDARD);
        for number in 0..100u64 {
            let mut datagram = [0x10; 40];
            sender.seal(&mut datagram);
            assert_eq!(datagram[..HEAD_BYTES], encode(5, number));
            assert_ne!(datagram[HEAD_BYTES..24], [0x10; 12]);
        }
    }

    #[test]
    fn seal__uses_the_key_of_the_epoch() {
        let mut sender = sender(Epochs::of_bits(2));
        let mut key: Box<dyn DatagramKey> = Box::new(TestKey::new(7));
        for number in 0..50u64 {
            if number > 0 && number % 4 == 0 {
                key = key.next();
            }
            let mut datagram = [0x10; 40];
            sender.seal(&mut datagram);
            assert!(key.open(number, &encode(5, number), &mut datagram[HEAD_BYTES..]));
            assert_eq!(datagram[HEAD_BYTES..24], [0x10; 12]);
        }
    }

    #[test]
    fn is_ended__before_the_last_number() {
        let mut sender = sender(Epochs::STANDARD);
        assert!(!sender.is_ended());
        sender.skip_to(NUMBER_END - LAST_NUMBERS - 1);
        assert!(!sender.is_ended());
        sender.seal(&mut [0; 40]);
        assert!(sender.is_ended());
        sender.skip_to(NUMBER_END - 1);
        sender.seal(&mut [0; 40]);
    }

    panics! {
        seal__without_a_number_left: "ends before its numbers" => {
            let mut sender = sender(Epochs::STANDARD);
            sender.skip_to(NUMBER_END);
            sender.seal(&mut [0; 40]);
        };
        seal__of_no_bytes: "not empty" => {
            sender(Epochs::STANDARD).seal(&mut [0; OVERHEAD_BYTES]);
        };
    }
}
