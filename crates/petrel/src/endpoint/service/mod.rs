//! Services: the endpoint's side of its clients.
//!
//! A [`Session`](crate::task::Session) is to a process and ends with it. A [`Client`](crate::Client) has a service on
//! one or several equivalent servers. The endpoint keeps a session to each, reopens sessions with back-off, and leaves
//! draining servers. For a call it chooses the session with the fewest outstanding calls. The endpoint also retries a
//! call where safe, or where the caller allows it:
//!
//! | outcome of the attempt | retried |
//! | --- | --- |
//! | UNAVAILABLE, and not sent, or refused by the server unexecuted | always |
//! | RESOURCE_EXHAUSTED, and refused by the server unexecuted | always |
//! | UNAVAILABLE, and it may have been executed | only a call that is [idempotent](crate::endpoint::CallOptions::idempotent) |
//! | no answer within the [timeout of an attempt](crate::client::ClientConfig::attempt_timeout) | as UNAVAILABLE: only calls that are idempotent have it |
//! | any other | never: the server has answered, or the deadline has passed |
//!
//! Each attempt is judged by its own outcome: a call whose first attempt was lost and whose second was refused gets a
//! third. The execution reported for a call covers all attempts. The call's deadline, the attempts of
//! [`ClientConfig::attempts_max`], and the [`RetryBudget`] bound the retries: when most calls fail, retries stop,
//! because they would become the larger part of the load. A server that refuses for overload gets fewer calls
//! ([`ConcurrencyLimit`](crate::overload::ConcurrencyLimit)).
//!
//! A call is an entry in a table and goes from [step](call::Step) to step; a waiting call costs its entry and a place
//! in a queue.
//!
//! | files | contents |
//! | --- | --- |
//! | `attempts/`, `open` | the steps that make, repeat and end calls, and open and end services |
//! | `steps`, `outcome` | steps that follow from no other: timers, cancellation, release, notification |
//! | `keeper` | the task that keeps a session to a server open |
//! | `fit` | the methods of typed services, as each server has them |
//! | `choice`, `service`, `call`, `connection` | the objects in the tables, and the choice of a server |
//! | `spec`, `retry`, `queue`, `servers`, `leader`, `reconnect` | their parts |

mod attempts;
mod call;
mod choice;
mod connection;
mod fit;
mod keeper;
mod leader;
mod open;
mod outcome;
mod queue;
mod reconnect;
mod retry;
mod servers;
#[expect(clippy::module_inception, reason = "the object that the module is named after")]
mod service;
mod spec;
mod standing;
mod steps;

use std::collections::VecDeque;
use std::fmt;

use petrel_proto::Status;

pub(crate) use attempts::{begin_call_at, cancel_call, cancel_posted, expect_table, run_due};
pub(crate) use open::{close_service, open_service, set_targets};
pub(crate) use outcome::run_ended;
pub(crate) use spec::{CallSpec, RequestBytes};

use crate::error::Error;
use crate::local::{Key, Slab, Timers};
use crate::values::CallbacksKey;
use crate::values::client::ServiceKey;
use call::{Attempt, ServiceCall, Step};
use connection::Connection;
use keeper::Way;
use outcome::EndedCall;
use service::{Chosen, Service};

/// The services of an endpoint's clients, and their calls.
#[derive(Default)]
pub(crate) struct Services {
    /// By the numbers that clients know.
    by_number: Vec<Option<Key>>,
    list: Slab<Service>,
    connections: Slab<Connection>,
    calls: Slab<ServiceCall>,
    hedges: Slab<Attempt>,
    timers: Timers<Due>,
    /// Calls that have ended where no continuation can run.
    ended: VecDeque<EndedCall>,
    calls_made: u64,
    calls_not_made: u64,
}

/// The subject of a timer.
#[derive(Clone, Copy, Debug)]
enum Due {
    Call(Key),
    /// The first call in the queue of a connection.
    Connection(Key),
    /// The client that waits for the first session of a service.
    Opening(Key),
}

impl Services {
    /// Returns the service with this number at clients.
    pub(crate) fn find(&self, number: ServiceKey) -> Option<Key> {
        *self.by_number.get(number.index())?
    }

    /// Returns the callbacks of a client.
    pub(crate) fn callbacks_of(&self, number: ServiceKey) -> Option<CallbacksKey> {
        match self.list.get(self.find(number)?)?.way() {
            Way::To(callbacks) => callbacks,
            Way::Back(_) => None,
        }
    }

    /// Returns the number of services.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns the number of unfinished calls and continuations.
    pub(crate) fn calls_len(&self) -> usize {
        self.calls.len() + self.ended.len()
    }

    /// Returns the numbers of sent and of unsendable calls.
    pub(crate) fn calls_made(&self) -> (u64, u64) {
        (self.calls_made, self.calls_not_made)
    }

    /// Returns when a timer is due next; [`u64::MAX`] without one.
    pub(crate) fn next_due_ns(&mut self) -> u64 {
        self.timers.next_ns()
    }

    /// Adds a call that has ended where no continuation can run.
    fn add_ended(&mut self, ended: EndedCall) {
        self.ended.push_back(ended);
    }

    fn ended_mut(&mut self) -> &mut VecDeque<EndedCall> {
        &mut self.ended
    }

    /// Counts a call that could not be sent.
    #[cold]
    fn count_not_made(&mut self) {
        self.calls_not_made += 1;
    }

    /// Removes a call from its queue.
    fn leave_queue(&mut self, key: Key) {
        let Some(call) = self.calls.get_mut(key) else { return };
        let (step, service, is_patient) = (call.take_step(), call.service(), call.is_patient());
        let calls = &self.calls;
        let waits = |call: Key| calls.get(call).is_some_and(|call| call.step() == step);
        match step {
            Step::Outstanding | Step::Pausing(_) => {}
            Step::WaitingForSession => {
                let service = self.list.get_mut(service).expect("a service stays for its calls");
                service.remove_waiting(is_patient, waits);
            }
            Step::InQueue(connection) => {
                if let Some(connection) = self.connections.get_mut(connection) {
                    connection.queue_mut().leave(waits);
                }
            }
        }
    }

    /// Rearms the timer of a call for its current step.
    fn arm(&mut self, key: Key) -> Option<u64> {
        let Self { calls, timers, .. } = self;
        let call = calls.get_mut(key)?;
        if let Some(timer) = call.take_timer() {
            timers.remove(timer);
        }
        let at_ns = call.due_ns()?;
        call.set_timer(timers.insert(at_ns, Due::Call(key)));
        Some(at_ns)
    }
}

#[cold]
fn unreachable(failures: &str) -> Error {
    Error::not_sent(Status::Unavailable, format!("no server can be reached: {failures}"))
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Services({}, {} calls)", self.list.len(), self.calls.len())
    }
}
