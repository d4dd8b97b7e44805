//! The rights that a region's key grants.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

/// The rights that a region's key grants; rights are joined by `|`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Access(u8);

impl Access {
    /// To read.
    pub const READ: Access = Access(1);
    /// To write.
    pub const WRITE: Access = Access(2);
    /// To swap and add words.
    pub const ATOMIC: Access = Access(4);
    /// The right to map the memory, in a process of the same host and user. Such a client no longer
    /// needs the server's CPU, and keeps its access when the region is revoked.
    pub const MAP: Access = Access(8);

    /// Returns true if `self` includes all rights of `other`.
    #[inline]
    pub const fn includes(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns true if the rights allow a change of the memory.
    pub const fn may_change(self) -> bool {
        self.0 & (Self::WRITE.0 | Self::ATOMIC.0) != 0
    }
}

impl BitOr for Access {
    type Output = Access;

    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

impl BitOrAssign for Access {
    fn bitor_assign(&mut self, other: Access) {
        *self = *self | other;
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            (Self::READ, "READ"),
            (Self::WRITE, "WRITE"),
            (Self::ATOMIC, "ATOMIC"),
            (Self::MAP, "MAP"),
        ];
        let names: Vec<&str> = all
            .into_iter()
            .filter(|(right, _)| self.includes(*right))
            .map(|(_, name)| name)
            .collect();
        f.write_str(&names.join(" | "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn includes__needs_all_rights() {
        let both = Access::READ | Access::WRITE;
        assert!(both.includes(Access::READ) && both.includes(both) && !Access::READ.includes(both));
        assert!(both.may_change() && !(Access::READ | Access::MAP).may_change());
        assert_eq!(format!("{:?}", both | Access::MAP), "READ | WRITE | MAP");
    }
}
