//! Refusals, with cause and remedy.

use std::io;

use rustix::io::Errno;

/// Why a device cannot be used by AF_XDP.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum XdpError {
    /// The kernel is too old.
    #[error("AF_XDP as used here needs Linux 5.11 or later; this kernel is {release}")]
    Kernel {
        /// The kernel's release.
        release: String,
    },
    /// There is no such interface.
    #[error("there is no interface {interface} here; `ip link` lists them")]
    NoInterface {
        /// The interface's name.
        interface: String,
    },
    /// The interface has a program already.
    #[error(
        "{interface}: another XDP program is attached (`ip link show {interface}` names its id); \
         stop the process that attached it, or share one `petrel xdp-helper`"
    )]
    AnotherProgram {
        /// The interface's name.
        interface: String,
    },
    /// The program was detached by force.
    #[error("{interface}: the XDP program was detached by another process, as by `bpftool`")]
    Detached {
        /// The interface's name.
        interface: String,
    },
    /// Other AF_XDP sockets have the queues.
    #[error(
        "{interface}: other AF_XDP sockets have every queue that was asked for; give each \
         endpoint a queue of its own (`ethtool -L {interface} combined N`)"
    )]
    QueuesTaken {
        /// The interface's name.
        interface: String,
    },
    /// The memory is more than the process may lock.
    #[error(
        "AF_XDP locks {bytes} bytes of memory for an endpoint, more than this process may: set \
         `LimitMEMLOCK={bytes}` (times the endpoints) in the unit, raise `ulimit -l`, or \
         configure fewer chunks"
    )]
    LockedMemory {
        /// The bytes of all sockets of the endpoint.
        bytes: usize,
    },
    /// The UDP socket gives no right to packets of the interface.
    #[error("{interface}: {why}; bind it to an address of {interface}, or to all addresses")]
    Socket {
        /// The interface's name.
        interface: String,
        /// The reason.
        why: String,
    },
    /// A setting is out of its limits.
    #[error("{setting} is {value}, but must be {expected}")]
    Setting {
        /// The field of [`XdpConfig`](super::XdpConfig).
        setting: &'static str,
        /// The configured value.
        value: String,
        /// The allowed values.
        expected: &'static str,
    },
    /// The kernel refused a step.
    #[error("{interface}: {step}: {error}; {remedy}")]
    Refused {
        /// The interface's name.
        interface: String,
        /// The refused step.
        step: &'static str,
        /// The kernel's reason.
        error: Errno,
        /// The way out, where one is known.
        remedy: &'static str,
    },
    /// The helper has another client with the port.
    #[error("the helper at {path}: {said}; stop that process, or use another port")]
    PortTaken {
        /// The helper's socket.
        path: String,
        /// The helper's reason.
        said: String,
    },
    /// The helper refused, or there is none.
    #[error("the helper at {path}: {said}")]
    Helper {
        /// The helper's socket.
        path: String,
        /// The helper's reason, or the system's.
        said: String,
    },
}

/// A step of the set-up, which the kernel may refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Create,
    Register,
    Map,
    Bind,
    Load,
    Attach,
    Enter,
    BusyPoll,
    Ask,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Self::Create => "an AF_XDP socket cannot be created",
            Self::Register => "memory cannot be registered",
            Self::Map => "the rings cannot be mapped",
            Self::Bind => "the socket cannot be bound to the queue",
            Self::Load => "the XDP program cannot be loaded",
            Self::Attach => "the XDP program cannot be attached",
            Self::Enter => "the port cannot be entered into the program's maps",
            Self::BusyPoll => "busy polling cannot be set",
            Self::Ask => "the interface cannot be asked for its properties",
        }
    }

    fn remedy(self, error: Errno) -> &'static str {
        match (self, error) {
            (Self::Create, Errno::PERM) => {
                "grant CAP_NET_RAW, or use `petrel xdp-helper`, which needs no capability here"
            }
            (Self::Create, Errno::AFNOSUPPORT) => "the kernel lacks CONFIG_XDP_SOCKETS",
            (Self::Bind, Errno::OPNOTSUPP) => "the driver has no zero copy: choose a copy mode",
            (Self::Bind, Errno::INVAL) => "the queue does not exist, or the driver lacks the mode",
            (_, Errno::NETDOWN) => "set the interface up (`ip link set dev … up`)",
            (_, Errno::NODEV | Errno::NXIO) => "the interface is gone",
            (Self::Load | Self::Attach | Self::Enter | Self::BusyPoll, Errno::PERM) => {
                "grant CAP_NET_ADMIN and CAP_BPF, or use `petrel xdp-helper`"
            }
            (Self::Attach, Errno::OPNOTSUPP | Errno::INVAL | Errno::RANGE) => {
                "the driver or the MTU does not allow native mode: choose the generic mode"
            }
            (Self::BusyPoll, Errno::NOPROTOOPT) => "the kernel lacks CONFIG_NET_RX_BUSY_POLL",
            (Self::Enter, Errno::TOOBIG) => "the program's maps are full: use fewer endpoints",
            (_, Errno::NOMEM | Errno::NOBUFS) => "free memory, or configure fewer chunks",
            (_, Errno::MFILE | Errno::NFILE) => "raise the limit of open files",
            _ => "the kernel's log may say more",
        }
    }

    /// Returns the refusal of this step.
    pub(super) fn refused(self, interface: &str, error: impl Into<io::Error>) -> XdpError {
        let error = Errno::from_io_error(&error.into()).unwrap_or(Errno::IO);
        let interface = interface.to_owned();
        XdpError::Refused { interface, step: self.name(), error, remedy: self.remedy(error) }
    }
}
