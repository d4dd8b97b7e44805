//! The optimisations of the fast path, each with a switch, to measure their effect (eRPC §6.2, table 3) with
//! `petrel-experiment factors`.

/// Switches for optimisations of the fast path. All are on by default; only measurements have a reason to switch one
/// off. `protocol`, `host` and `sessions` of the configuration have further ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Optimisations {
    /// Reads the clock once per turn of the event loop; else once per frame, both ways (eRPC §5.2.2).
    pub clock_once_per_turn: bool,
    /// Reuses the buffer of a slot's former response for the next; else each response gets one from the pool (eRPC
    /// §4.3).
    pub preallocated_responses: bool,
    /// Handlers read requests of one packet in the receive buffer, which over shared memory is a private copy of the
    /// frame. Else each request is copied to a message buffer first (eRPC §4.2.3).
    pub zero_copy_requests: bool,
    /// Sends responses and calls to the sender of the current frame straight into the sender's ring, while the session
    /// is in the cache. Else, and over UDP always, they wait in a queue for the end of the burst.
    pub immediate_sends: bool,
    /// Passes frames to the medium in bursts; else singly (eRPC §4.2).
    pub bursts: bool,
    /// A polling endpoint tells its peers over shared memory that it never sleeps; else they issue a memory fence per
    /// burst, to check whether to wake it.
    pub fence_free: bool,
}

impl Default for Optimisations {
    fn default() -> Self {
        Self {
            clock_once_per_turn: true,
            preallocated_responses: true,
            zero_copy_requests: true,
            immediate_sends: true,
            bursts: true,
            fence_free: true,
        }
    }
}

impl Optimisations {
    /// Returns true if responses leave before the end of their burst.
    pub(super) fn sends_at_once(&self) -> bool {
        self.immediate_sends && self.bursts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default__is_all_of_them() {
        let all = Optimisations {
            clock_once_per_turn: true,
            preallocated_responses: true,
            zero_copy_requests: true,
            immediate_sends: true,
            bursts: true,
            fence_free: true,
        };
        assert_eq!(Optimisations::default(), all);
    }
}
