//! The number of slots that a server agrees to (`docs/wire-protocol.md` §8.5).
//!
//! A slot used by a client takes memory at the server. The total of all clients is bounded here, when sessions are agreed on. The first
//! sessions get their proposals; the more sessions, the fewer slots for each further one. None gets less than a session needs for calls
//! that do not wait.

/// Slots that an endpoint agrees to as a server before sessions get only the minimum: 32 MiB, at 64 bytes each. The
/// nexus's charge per session then allows tens of thousands of sessions.
const SLOTS_IN_ALL_MAX: u64 = 1 << 19;

/// The largest share of the remainder for a session: the first 128 sessions get the default of 2 048 slots, the next 128 a half, and so on.
/// A single process reaches the share of its connection earlier (`nexus`).
const SESSIONS_TO_COME: u64 = 128;

/// The minimum for every session that proposes at least as many: twice eRPC's number.
pub(crate) const SLOTS_MIN: u16 = 16;

/// Returns the slots to agree to, from the client's proposal, the endpoint's limit, and the total of the other
/// sessions.
pub(crate) fn slots_for(proposed: u16, allowed: u16, agreed_in_all: u64) -> u16 {
    let left = SLOTS_IN_ALL_MAX.saturating_sub(agreed_in_all);
    let slots = proposed.min(allowed).min(slots_of(left));
    assert!(slots <= allowed, "a server gives a session no more slots than it allows");
    slots
}

/// Returns the slots of a session's share when `left` slots are left.
pub(crate) fn slots_of(left: u64) -> u16 {
    let share = left / SESSIONS_TO_COME;
    // The largest power of two up to the share, which is 0 or fits.
    const { assert!(SLOTS_MIN.is_power_of_two()) };
    let share = share.checked_ilog2().map_or(0, |log2| 1_u16 << log2.min(15));
    share.max(SLOTS_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_for__few_sessions_get_what_they_propose() {
        assert_eq!(slots_for(2048, 2048, 0), 2048);
        assert_eq!(slots_for(4096, 2048, 0), 2048);
        assert_eq!(slots_for(4, 2048, 0), 4);
        assert_eq!(slots_for(2048, 1, 0), 1);
    }

    /// For any proposals, and any number of clients.
    #[test]
    fn slots_for__all_sessions_together_are_bounded() {
        let sessions = 20_000_u64;
        let mut in_all = 0;
        for session in 0..sessions {
            let slots = slots_for(4096, 4096, in_all);
            assert!(slots.is_power_of_two() && slots >= SLOTS_MIN);
            assert!(session > 120 || slots >= 2048, "session {session} gets {slots}");
            in_all += u64::from(slots);
        }
        assert!(in_all <= SLOTS_IN_ALL_MAX + sessions * u64::from(SLOTS_MIN), "{in_all}");
    }
}
