//! The numbers of services at an endpoint.

use crate::sync::{Mutex, lock};

/// The number of a service at its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServiceKey(u32);

impl ServiceKey {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Numbers of services, small ones first.
#[derive(Default)]
pub(crate) struct ServiceKeys {
    free: Mutex<FreeKeys>,
}

#[derive(Default)]
struct FreeKeys {
    next: u32,
    /// The free list of numbers below `next`.
    list: Vec<u32>,
}

impl ServiceKeys {
    pub(crate) fn take(&self) -> ServiceKey {
        let mut free = lock(&self.free);
        let number = free.list.pop().unwrap_or_else(|| {
            free.next += 1;
            free.next - 1
        });
        ServiceKey(number)
    }

    /// Frees the number of a service that the endpoint has forgotten.
    pub(crate) fn free(&self, key: ServiceKey) {
        let mut free = lock(&self.free);
        assert!(key.0 < free.next, "a number that is freed was taken");
        free.list.push(key.0);
        assert!(free.list.len() <= free.next as usize, "a number is freed once");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An endpoint indexes a table by these numbers, which should be no larger than the number of services.
    #[test]
    fn take__the_smallest_numbers_and_freed_ones() {
        let keys = ServiceKeys::default();
        let taken = [(); 4].map(|()| keys.take());
        assert_eq!(taken.map(ServiceKey::index), [0, 1, 2, 3]);
        keys.free(taken[1]);
        keys.free(taken[2]);
        let mut again = [(); 3].map(|()| keys.take().index());
        again.sort_unstable();
        assert_eq!(again, [1, 2, 4]);
    }

    panics! {
        free__of_a_number_that_was_not_taken: "a number that is freed was taken"
            => ServiceKeys::default().free(ServiceKey(0));
        free__again: "a number is freed once" => {
            let keys = ServiceKeys::default();
            let key = keys.take();
            (0..2).for_each(|_| keys.free(key));
        };
    }
}
