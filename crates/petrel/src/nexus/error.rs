//! What can go wrong between a program and its nexus.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use petrel_proto::control::DecodeError;

use crate::control::{EndpointId, Reason};

/// Why a nexus could not start, take an endpoint, or be asked for its counters.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NexusError {
    /// Without credentials, only this host may connect.
    #[error(
        "refused to listen on {address}: anybody who reaches it could call this process; listen \
         on a loopback address, or call insecure() if the network is trusted"
    )]
    NotLoopback {
        /// The address that was asked for.
        address: SocketAddr,
    },
    /// The address is taken, not local, or a privileged port.
    #[error("cannot listen on {address}: {source}; choose another address or port 0")]
    Listen {
        /// The address that was asked for.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The socket that it was given is not one to listen on.
    #[error("cannot listen on the given socket: {0}")]
    ListenOn(#[source] io::Error),
    /// The heartbeat interval is not one that peers accept.
    #[error("a heartbeat of {heartbeat:?} is out of range; choose 1 ms to 10 s")]
    Heartbeat {
        /// The interval that was asked for.
        heartbeat: Duration,
    },
    /// The system has no thread, descriptor or random number to give.
    #[error("cannot start the control plane: {0}; look at the process's limits (ulimit -a)")]
    Start(io::Error),
    /// The wanted endpoint number is in use.
    #[error("endpoint {} exists already in this process; choose another number, or none", id.0)]
    EndpointTaken {
        /// The number.
        id: EndpointId,
    },
    /// 65 535 is not an endpoint's number.
    #[error("{} is no endpoint's number; choose one below 65535, or none", id.0)]
    EndpointNumber {
        /// The number.
        id: EndpointId,
    },
    /// All endpoint numbers are in use.
    #[error("this process has 65535 endpoints already; drop some first")]
    EndpointsExhausted,
    /// The control plane's thread has ended by an error in it.
    #[error(
        "the control plane of this process has ended by an internal error; restart the process"
    )]
    Ended,
    /// Nobody answers at a control address.
    #[error(
        "cannot connect to {address}: {source}; is the server started, and is this its control address?"
    )]
    Connect {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The answer did not come in time.
    #[error(
        "no answer from {address} within {timeout:?}; the process may be stopped or overloaded"
    )]
    Timeout {
        /// The address.
        address: SocketAddr,
        /// The time that was allowed.
        timeout: Duration,
    },
    /// The other process said no.
    #[error("{address} refused: {}: {}", reason.status, reason.message)]
    Refused {
        /// The address.
        address: SocketAddr,
        /// Its words.
        reason: Reason,
    },
    /// What answered does not follow the protocol.
    #[error(
        "{address} does not follow the protocol: {source}; is it a Petrel process of this version?"
    )]
    Protocol {
        /// The address.
        address: SocketAddr,
        /// What is wrong.
        source: DecodeError,
    },
    /// The connection broke before the answer was complete.
    #[error("the connection to {address} broke: {source}; try again")]
    Broken {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
}
