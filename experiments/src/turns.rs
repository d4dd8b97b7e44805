//! The turns of an end that takes turns with others on one thread: their times, without interruptions.

use petrel_transport::clock;

/// One of this many turns may have been interrupted, and does not count.
const TURNS_PER_INTERRUPTION: usize = 100;

/// The times of an end's turns.
#[derive(Default)]
pub(crate) struct Turns(Vec<u64>);

impl Turns {
    /// Adds the turn since a time, and returns the current time.
    #[inline]
    pub(crate) fn add(&mut self, since_ns: u64) -> u64 {
        let now_ns = clock::now_ns();
        self.0.push(now_ns - since_ns);
        now_ns
    }

    /// Returns the time of all turns. The longest turns, with other programs on the CPU, count as the mean of the others.
    pub(crate) fn total_ns(mut self) -> f64 {
        self.0.sort_unstable();
        let kept = self.0.len() - self.0.len() / TURNS_PER_INTERRUPTION;
        let sum: u64 = self.0[..kept].iter().sum();
        sum as f64 * self.0.len() as f64 / kept.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn total__an_interrupted_turn_counts_as_the_others() {
        let mut turns = vec![10; 199];
        turns.push(1_000_000);
        assert_eq!(Turns(turns).total_ns(), 2_000.0);
        assert_eq!(Turns(vec![10, 30]).total_ns(), 40.0);
        assert_eq!(Turns::default().total_ns(), 0.0);
    }
}
