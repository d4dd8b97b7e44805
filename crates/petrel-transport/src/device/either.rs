//! A device of either kind, and its ways. The kind is the same for as long as a device is open, so that its branches are predicted.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use super::dpdk::{Dpdk, DpdkWays};
use super::ether::ways::{Changes, NoWay, Way, Ways};
use super::port::{FindWays, Port};
use super::xdp::{Dropped, State, Xdp};
use super::{Judgement, Nic};

/// The datagrams of a UDP port over a device of either kind.
pub(crate) type DevicePort = Port<EitherNic, EitherWays>;

pub(crate) enum EitherNic {
    Xdp(Xdp),
    Dpdk(Dpdk),
}

pub(crate) enum EitherWays {
    Kernel(Ways),
    Dpdk(DpdkWays),
}

/// Does the same with a device of either kind.
macro_rules! either {
    ($value:expr, $nic:pat => $result:expr) => {
        match $value {
            EitherNic::Xdp($nic) => $result,
            EitherNic::Dpdk($nic) => $result,
        }
    };
}

impl EitherNic {
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Xdp(xdp) => xdp.interface().to_owned(),
            Self::Dpdk(dpdk) => dpdk.name(),
        }
    }

    /// The descriptors that end a sleep.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let (xdp, dpdk) = match self {
            Self::Xdp(xdp) => (Some(xdp), None),
            Self::Dpdk(dpdk) => (None, Some(dpdk)),
        };
        xdp.into_iter().flat_map(Xdp::fds).chain(dpdk.map(Dpdk::fd))
    }

    /// Prepares the descriptors for a sleep.
    pub(crate) fn prepare_sleep(&self) {
        if let Self::Dpdk(dpdk) = self {
            dpdk.prepare_sleep();
        }
    }

    /// Frames that were lost for want of memory or room.
    pub(crate) fn dropped(&self) -> u64 {
        match self {
            Self::Xdp(xdp) => {
                let Dropped { receive, ring_full, .. } = xdp.dropped();
                receive + ring_full
            }
            Self::Dpdk(dpdk) => dpdk.dropped(),
        }
    }

    /// Returns the reason if packets reach the kernel's socket alone.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        match self {
            Self::Xdp(xdp) => match xdp.state() {
                State::Unaided => Some("`petrel xdp-helper` has ended"),
                State::Detached => Some("the program was detached from the interface"),
                _ => None,
            },
            Self::Dpdk(_) => None,
        }
    }
}

impl Nic for EitherNic {
    fn frame_bytes_max(&self) -> usize {
        either!(self, nic => nic.frame_bytes_max())
    }

    fn receive_frames(&self) -> usize {
        either!(self, nic => nic.receive_frames())
    }

    #[inline]
    fn has_room(&mut self, frames: usize) -> bool {
        either!(self, nic => nic.has_room(frames))
    }

    #[inline]
    fn begin(&mut self) -> Option<&mut [u8]> {
        either!(self, nic => nic.begin())
    }

    #[inline]
    fn commit(&mut self, bytes: usize) {
        either!(self, nic => nic.commit(bytes));
    }

    #[inline]
    fn flush(&mut self) -> u64 {
        either!(self, nic => nic.flush())
    }

    #[inline]
    fn has_unsent(&mut self) -> bool {
        either!(self, nic => nic.has_unsent())
    }

    #[inline]
    fn received(&mut self) -> Option<&mut [u8]> {
        either!(self, nic => nic.received())
    }

    fn has_received(&mut self) -> bool {
        either!(self, nic => nic.has_received())
    }

    #[inline]
    fn received_judged(&mut self) -> Option<(&mut [u8], Judgement)> {
        either!(self, nic => nic.received_judged())
    }

    #[inline]
    fn completes_sums(&self) -> bool {
        either!(self, nic => nic.completes_sums())
    }

    #[inline]
    fn release(&mut self) {
        either!(self, nic => nic.release());
    }
}

impl FindWays for EitherWays {
    fn way_to(&mut self, from: Option<IpAddr>, to: SocketAddr) -> Result<Way, NoWay> {
        match self {
            Self::Kernel(ways) => ways.way_to(from, to),
            Self::Dpdk(ways) => ways.way_to(from, to),
        }
    }

    fn read_events(&mut self) -> Changes {
        match self {
            Self::Kernel(ways) => ways.read_events(),
            Self::Dpdk(ways) => ways.read_events(),
        }
    }

    fn carries_loopback(&self) -> bool {
        matches!(self, Self::Dpdk(ways) if ways.carries_loopback())
    }
}
