//! The choice of the protocol version of two processes (§8.3).

/// The versions that a process supports: all from `min` to `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionRange {
    /// The oldest.
    pub min: u16,
    /// The newest.
    pub max: u16,
}

impl VersionRange {
    /// The versions that this implementation supports.
    pub const OWN: VersionRange = VersionRange { min: 1, max: 1 };
}

/// The two processes have no version in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no common protocol version: this side speaks {}, the peer {}; update the older side",
    Shown(own),
    Shown(peer)
)]
pub struct VersionMismatch {
    /// This side's versions.
    pub own: VersionRange,
    /// The peer's versions.
    pub peer: VersionRange,
}

/// Returns the version to use: the smaller of the two newest, if both sides support it.
///
/// # Errors
/// When the sides have no version in common: the connection ends with UNIMPLEMENTED.
///
/// # Panics
/// If a range is empty.
pub fn choose_version(own: VersionRange, peer: VersionRange) -> Result<u16, VersionMismatch> {
    assert!(own.min <= own.max, "this side supports a version");
    assert!(peer.min <= peer.max, "the decoder refuses an empty range");
    let version = own.max.min(peer.max);
    if version >= own.min && version >= peer.min {
        Ok(version)
    } else {
        Err(VersionMismatch { own, peer })
    }
}

struct Shown<'a>(&'a VersionRange);

impl core::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 {
            VersionRange { min, max } if min == max => write!(f, "{min}"),
            VersionRange { min, max } => write!(f, "{min} to {max}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn range(min: u16, max: u16) -> VersionRange {
        VersionRange { min, max }
    }

    #[test]
    fn choose_version__newest_in_common() {
        assert_eq!(choose_version(range(1, 1), range(1, 1)), Ok(1));
        assert_eq!(choose_version(range(1, 3), range(2, 9)), Ok(3));
        assert_eq!(choose_version(range(2, 9), range(1, 3)), Ok(3));
        assert_eq!(choose_version(range(1, 9), range(4, 4)), Ok(4));
    }

    #[test]
    fn choose_version__none_in_common() {
        let error = choose_version(range(1, 1), range(2, 3)).unwrap_err();
        assert_eq!(error, VersionMismatch { own: range(1, 1), peer: range(2, 3) });
        assert!(error.to_string().contains("this side speaks 1, the peer 2 to 3"), "{error}");
        assert!(choose_version(range(5, 9), range(1, 4)).is_err());
    }

    panics! {
        choose_version__of_an_empty_range: "the decoder refuses an empty range"
            => _ = choose_version(range(1, 1), range(2, 1));
    }

    #[test]
    fn choose_version__both_sides_agree() {
        for (a, b) in (0..64u16).flat_map(|a| (0..64u16).map(move |b| (a, b))) {
            let (a, b) = (range(a % 8, a / 8), range(b % 8, b / 8));
            if a.min <= a.max && b.min <= b.max {
                assert_eq!(choose_version(a, b).ok(), choose_version(b, a).ok());
                assert_eq!(choose_version(a, b).is_ok(), a.min <= b.max && b.min <= a.max);
            }
        }
    }
}
