//! Whole worlds from one seed, and what must hold in each.
//!
//! A seed draws hosts and processes, their settings, a network, a workload and all that goes wrong.
//! Real endpoints then call each other: echoes and transformations of every size, deferred and
//! nested answers, errors, forgotten requests, calls of methods that nobody serves. After the
//! storm there is a quiet time in which everything must come to an end. Checked are
//!
//! - **calls**: each ends exactly once, with the right answer, byte for byte, or with a failure
//!   that has a reason: what the call asked for, or a crash, partition, pause, closed session or
//!   heavy loss that touched one of its hosts while it was on its way;
//! - **handlers**: each runs at most once for a call, across crashes and sessions; exactly once if
//!   the call succeeded; never if the client was told that nothing was sent, or that the server refused;
//! - **deadlines**: a call ends with DEADLINE_EXCEEDED not before its time, and no more than a tick and a few
//!   turns after it, and none succeeds later; a frame says what is left by a clock that was read for it; handlers see
//!   that, no request runs whose time is over, and nested calls and those that follow them inherit just that.
//!   Threads stand still within their turns all the same, and each rule has leave for the length of those stops
//!   that befell the side that it is about, and no more. A call that its caller cancels ends so, once, wherever it is;
//! - **clients and groups**: a call of a client ends once and in time, whatever becomes of its sessions; it
//!   is attempted no more often than it may be, and executed at most once unless its caller allows more; a
//!   group's outcome is that of its members. See `errand`;
//! - **workers**: what admission control refuses, or its caller has given up, is not run;
//! - **drains**: an endpoint that drains loses no call that it has been sent, and takes its leave when the
//!   last client has left;
//! - **watched requests**: a handler that asked for it is told, once, if nobody waits any more, or it
//!   answers;
//! - **resources**: credits are back where they began, no buffer is lent out and no session is open
//!   when all is over;
//! - **frames**: where nobody forges any, none is malformed, from the wrong peer, in the wrong
//!   direction, beyond the window or about the future;
//! - **economy**: nothing is sent again that the other side is known to have, no client exceeds its
//!   credits, and every CREDIT and PULL tells exactly what was received: a witness follows each
//!   session from its frames alone; and repetitions are in proportion to losses;
//! - **buffers**: no frame shows a buffer that was given back. Applications overwrite theirs when
//!   they have them back, and use them for other calls; pools poison what comes back to them; no frame
//!   may change between push and flush; and each payload that leaves, sent again or for nobody, is
//!   held against what its call's message has there;
//! - **rest**: when the calls have ended, nothing is left of them: no slot waits for a credit or its pace, no request runs,
//!   no box of a large message is kept, nothing is to be sent; and in the end no session, task, sleeping future or order.
//!   Meanwhile tables and queues hold no more than they may;
//! - **cost**: calls alone, when all is at rest, take the packets and passes of event loops that the protocol needs, and
//!   the time that the links do. See `measure`;
//! - **progress**: everything ends; after the storm a new session to every process that runs works, and so
//!   does every client. Tasks end with the clients that they serve.
//!
//! Beside this world each seed has one of production [nexuses](crate::nexus), with rules of its own.
//!
//! Corrupted packets are dropped by their checksum, as UDP's does: frames have none of their own.
//!
//! ```
//! use petrel_sim::check::{Options, run_seed};
//!
//! let report = run_seed(7, &Options::default())?;
//! assert!(report.calls > 0);
//! assert_eq!(run_seed(7, &Options::default())?.digest, report.digest);
//! # Ok::<(), petrel_sim::check::Failure>(())
//! ```

mod call;
mod crew;
mod errand;
mod ledger;
mod measure;
mod nemesis;
mod node;
mod patience;
pub(crate) mod pattern;
mod report;
mod runner;
mod scenario;
mod service;
mod spare;
mod swarm;
mod to_make;
mod trouble;
mod verdict;
mod watch;
mod workload;
mod world;

pub use report::Report;
pub use runner::{Options, run_seed, run_seed_traced, run_seeds};

pub use crate::seeds::{Failure, Progress, Summary};
