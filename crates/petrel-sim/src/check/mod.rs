//! Whole worlds drawn from a seed, and the rules that must hold in all of them.
//!
//! A seed draws hosts and processes, their settings, a network, a workload and a fault schedule. Real endpoints then
//! exchange calls: echoes and transformations of every size, deferred and nested answers, errors, dropped requests,
//! calls of unknown methods. After the faults comes a quiet time in which everything must end. The checker verifies
//!
//! - **calls**: a call ends exactly once, with the right answer, byte for byte, or with a failure that has
//!   a reason: the call asked for it, or a crash, partition, pause, closed session or heavy loss hit one of
//!   its hosts while the call was outstanding;
//! - **handlers**: a handler runs at most once for a call, across crashes and sessions; exactly once if the
//!   call succeeded; never if the client learned that nothing was sent, or that the server refused;
//! - **deadlines**: a call ends with DEADLINE_EXCEEDED not before its deadline, at most a tick and a few
//!   turns later, and no call succeeds later. A frame carries the remaining time by a clock read for this
//!   frame. Handlers see the deadline, no request runs later, and nested and following calls inherit
//!   exactly this deadline. Threads stop within their turns nevertheless: a rule allows for the length of
//!   the stops of the side in question, and no more. A cancelled call ends as cancelled, once, in whatever
//!   state it is;
//! - **clients and groups**: a client's call ends once and in time, whatever happens to its sessions. It is
//!   attempted at most the allowed number of times, and executed at most once unless its caller allows
//!   more. A group's outcome follows from its members. See `client_call`;
//! - **regions**: operations on one-sided regions, in a quarter of the worlds, follow a model of the memory: each is
//!   executed at most once, and is never seen if its outcome says that it was not executed; words are never torn, reads see all
//!   writes that ended before, swaps and additions are chains, revoked keys allow nothing, and at the end each word of each memory
//!   is one that the model allows. See `regions`;
//! - **workers**: requests that admission control refuses, or that the caller has cancelled, are not run;
//! - **drains**: a draining endpoint loses no call sent to it, and ends when the last client has left;
//! - **watched requests**: a handler that asked for a notification is notified, once, if its caller stops
//!   waiting, or the handler answers;
//! - **resources**: at the end of the run credits are back at their initial number, no buffer is lent out
//!   and no session is open;
//! - **frames**: without forged frames, no frame is malformed, from the wrong peer, in the wrong direction,
//!   beyond the window or about the future;
//! - **economy**: no packet is retransmitted that its receiver is known to have, no client exceeds its
//!   credits, and every CREDIT and PULL reports exactly the received packets: a wire checker follows every
//!   session from its frames alone. Retransmissions are in proportion to losses;
//! - **buffers**: no frame shows a buffer after its release. Applications overwrite their buffers when they
//!   get them back, and reuse them for further calls; pools poison returned buffers; no frame may change
//!   between push and flush; and every departing payload, including retransmissions and stale ones, is
//!   compared with its call's message;
//! - **idle state**: when the calls have ended, they leave nothing behind: no slot waits for a credit or
//!   its pace, no request runs, no reassembly state of a large message is kept, nothing waits to be sent.
//!   At the end no session, task, timer or queued command is left. Until then tables and queues stay within
//!   their limits;
//! - **cost**: calls alone, when everything is idle, need the packets and turns of the protocol and the
//!   time of the links, and no more. See `measure`;
//! - **progress**: everything ends. After the faults a new session to every running process works, and so
//!   does every client. Tasks end with their clients.
//!
//! In addition, every second seed has a world of production [nexuses](crate::nexus), with its own rules.
//!
//! Corrupted packets are dropped because of their checksum, as with UDP: frames have no checksum.
//!
//! ```
//! use petrel_sim::check::{Options, run_seed};
//!
//! let report = run_seed(7, &Options::default())?;
//! assert!(report.calls > 0);
//! assert_eq!(run_seed(7, &Options::default())?.digest, report.digest);
//! # Ok::<(), petrel_sim::check::Failure>(())
//! ```

/// Declares counters, each with the name in a report.
macro_rules! counts {
    ($(#[$meta:meta])* struct $counts:ident { $($(#[$doc:meta])* $field:ident: $name:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(super) struct $counts { $($(#[$doc])* pub(super) $field: u64,)* }

        impl $counts {
            /// Returns the names and values.
            pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$(($name, self.$field),)*].into_iter()
            }
        }
    };
}

mod attacker;
mod call;
mod client_call;
pub(crate) mod fault_window;
mod free_list;
mod handlers;
mod ledger;
mod measure;
mod nemesis;
mod node;
mod options;
pub mod pattern;
mod probes;
mod regions;
mod report;
mod runner;
mod scenario;
mod service;
mod several_paths;
mod swarm;
mod timeout_policy;
mod to_make;
mod verdict;
mod watch;
mod worker_pool;
mod workload;
mod world;

pub use options::Options;
pub use probes::never_met;
pub use report::Report;
pub(crate) use runner::describe;
pub use runner::{run_script, run_seed, run_seed_traced, run_seeds};

pub use crate::seeds::{Failure, Progress, Summary};
