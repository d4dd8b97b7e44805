use std::io;

use super::FRAME_BYTES_MIN;

/// Why an endpoint cannot use an RDMA card.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The library is not installed.
    #[error(
        "RDMA cards need libibverbs, which cannot be opened ({why}); install it and the card's provider: `apt-get install rdma-core \
         ibverbs-providers`"
    )]
    Missing {
        /// The loader's reason.
        why: String,
    },
    /// The host has no card, or none of this name.
    #[error(
        "there is no RDMA card{}{name}; the host has: {others}; `rdma link` shows cards, and `rdma link add rxe0 type rxe netdev IF` emulates one",
        if name.is_empty() { "" } else { " " }
    )]
    NoDevice {
        /// The name that was asked for; empty for any.
        name: String,
        /// The names of the host's cards.
        others: String,
    },
    /// The port carries nothing.
    #[error("port {port} of the RDMA card {name} is not active; see `rdma link`")]
    PortDown {
        /// The card.
        name: String,
        /// The port.
        port: u8,
    },
    /// The port's packets are smaller than a frame.
    #[error(
        "the packets of port {port} of the RDMA card {name} have {mtu} bytes at most, and frames need {FRAME_BYTES_MIN}; over Ethernet, \
         raise the interface's MTU to 2 200 or more (`ip link set IF mtu 4200`)"
    )]
    SmallMtu {
        /// The card.
        name: String,
        /// The port.
        port: u8,
        /// The largest payload of the port's packets, in bytes.
        mtu: usize,
    },
    /// The port has no address that peers can name.
    #[error(
        "port {port} of the RDMA card {name} has no RoCE v2 address; give its interface an IP address"
    )]
    NoAddress {
        /// The card.
        name: String,
        /// The port.
        port: u8,
    },
    /// A call of the library failed.
    #[error("{call} failed: {why}{hint}")]
    Refused {
        /// The function's name.
        call: &'static str,
        /// The system's reason.
        why: io::Error,
        /// Advice, where the reason has a usual cause.
        hint: &'static str,
    },
}

impl VerbsError {
    /// The reason of a call that has just failed, by `errno`.
    pub(super) fn last(call: &'static str) -> Self {
        Self::refused(call, io::Error::last_os_error())
    }

    pub(super) fn refused(call: &'static str, why: io::Error) -> Self {
        let hint = match (call, why.raw_os_error()) {
            ("ibv_reg_mr", Some(libc::ENOMEM)) => {
                "; raise the limit of locked memory (`ulimit -l`, systemd: LimitMEMLOCK=)"
            }
            ("ibv_open_device", Some(libc::EACCES | libc::EPERM)) => {
                "; the user needs access to /dev/infiniband/uverbs*"
            }
            _ => "",
        };
        Self::Refused { call, why, hint }
    }
}
