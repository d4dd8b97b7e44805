//! Tests with requirements that a host may lack.
//!
//! On a host without the requirement, the test calls [`skip`] and returns. By default it passes then,
//! after a line on standard output. If the environment variable `PETREL_REQUIRE` demands the
//! requirement, the test fails instead: a test that runs nowhere would pass for ever.
//!
//! ```sh
//! PETREL_REQUIRE=1 cargo test                        # nothing may be skipped
//! PETREL_REQUIRE=1,-namespaces,-mounts cargo test    # but for tests with networks and disks of their own
//! PETREL_REQUIRE=multicast cargo test                # these tests may not be skipped, all others may
//! ```
//!
//! The value is a comma-separated list: `1` demands everything, a name of [`Need`] demands a single
//! need, and a name after `-` excludes a need again. An unknown word is an error, because a misspelt
//! name would demand nothing.

use std::env::{self, VarError};
use std::fmt::Display;

/// The environment variable with the list of needs whose tests may not be skipped.
pub const VARIABLE: &str = "PETREL_REQUIRE";

macro_rules! needs {
    ($($(#[$doc:meta])* $need:ident = $name:literal,)*) => {
        /// A requirement that a host may lack, with its name in `PETREL_REQUIRE`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Need { $($(#[$doc])* $need,)* }

        impl Need {
            const ALL: &'static [Need] = &[$(Need::$need,)*];

            /// Returns the name in `PETREL_REQUIRE`.
            pub fn name(self) -> &'static str {
                match self { $(Need::$need => $name,)* }
            }
        }
    };
}

needs! {
    /// `ipv6`: IPv6 on the loopback device.
    Ipv6 = "ipv6",
    /// `multicast`: IP multicast over the loopback device.
    Multicast = "multicast",
    /// `address`: an address of the host outside of loopback.
    Address = "address",
    /// `namespaces`: the programs `unshare`, `ip` and `nft`, and the right to create networks with them.
    Namespaces = "namespaces",
    /// `offload`: a virtual device in a network namespace that joins packets by GRO.
    Offload = "offload",
    /// `verbs`: a C compiler and the headers of libibverbs.
    Verbs = "verbs",
    /// `card`: an RDMA card whose name stands in `PETREL_VERBS`, or an emulated machine with one (`tools/guest`).
    Card = "card",
    /// `mounts`: a mount namespace with its own file system.
    Mounts = "mounts",
    /// `users`: the right to start a program as an unprivileged user who may read it.
    Users = "users",
    /// `go`: the compiler of Go, for the checker of linearizability.
    Go = "go",
    /// `memcached`: the programs `memcached` and `memccapable`, and Python with the module `pymemcache`.
    Memcached = "memcached",
    /// `dpdk`: the headers and libraries of DPDK, a C compiler and `pkg-config`.
    Dpdk = "dpdk",
    /// `valgrind`: valgrind, which counts instructions.
    Valgrind = "valgrind",
    /// `memory`: 4 GiB of memory, for messages of 1 GiB.
    Memory = "memory",
}

/// Reports that a test is skipped for lack of a requirement, and the reason.
///
/// # Panics
/// If `PETREL_REQUIRE` demands the requirement, or is no valid list.
pub fn skip(need: Need, why: impl Display) {
    let list = match env::var(VARIABLE) {
        Ok(list) => list,
        Err(VarError::NotPresent) => String::new(),
        Err(VarError::NotUnicode(list)) => panic!("{VARIABLE} is no text: {list:?}"),
    };
    let required = is_required(need, &list).unwrap_or_else(|error| panic!("{error}"));
    assert!(!required, "{VARIABLE} asks for `{}`, and this host lacks it: {why}", need.name());
    println!("skipped: {why}");
}

/// Returns true if the list demands the need. The last word about a need decides.
fn is_required(need: Need, list: &str) -> Result<bool, String> {
    let mut required = false;
    for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let (name, asks) = word.strip_prefix('-').map_or((word, true), |name| (name, false));
        let is_known = Need::ALL.iter().any(|need| need.name() == name);
        if !is_known && word != "1" {
            let known: Vec<_> = Need::ALL.iter().map(|need| need.name()).collect();
            return Err(format!("{VARIABLE} has `{word}`, and knows: 1, {}", known.join(", ")));
        }
        if word == "1" || name == need.name() {
            required = asks;
        }
    }
    Ok(required)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_required__by_its_name_or_with_everything() {
        for (list, expected) in [
            ("", false),
            ("1", true),
            ("go", true),
            (" ipv6 , go ", true),
            ("ipv6", false),
            ("1,-go", false),
            ("1,-ipv6,-mounts", true),
            ("-go,1", true),
            ("go,-go", false),
        ] {
            assert_eq!(is_required(Need::Go, list), Ok(expected), "{list}");
        }
    }

    #[test]
    fn is_required__of_an_unknown_word_is_an_error() {
        for list in ["0", "yes", "1,-netns", "-", "-1", "go go"] {
            let error = is_required(Need::Go, list).unwrap_err();
            assert!(error.contains("valgrind"), "{error}");
        }
    }

    #[test]
    fn name__differs_for_each() {
        for (place, need) in Need::ALL.iter().enumerate() {
            let first = Need::ALL.iter().position(|other| other.name() == need.name());
            assert_eq!(first, Some(place));
            assert_eq!(is_required(*need, need.name()), Ok(true));
        }
    }
}
