//! An operation: attempts, and the certainty about their effects.

use std::time::Duration;

use petrel::client::Response;
use petrel::endpoint::CallOptions;
use petrel::{Error, Execution, Status};
use petrel_planted::planted;

use super::{KvClient, KvError};
use crate::api::{Consistency, DecodeError, Refusal};

/// Most doublings of an attempt's timeout: a thousandfold reaches the operation's own deadline in practice.
const DOUBLINGS_MAX: u32 = 10;

/// Initial room for a request, enough for most requests.
const REQUEST_BYTES: usize = 256;

/// One operation.
///
/// The calls themselves follow redirects, and repeat attempts that certainly had no effect. A call that may have had an
/// effect ends here; the operation notes the uncertainty, and makes the call again.
pub(super) struct Operation<'a> {
    client: &'a KvClient,
    deadline_ns: u64,
    /// The key of a read that any replica may serve.
    stale: Option<&'a [u8]>,
    /// Whether it matters if a request executes without an answer.
    has_effects: bool,
    /// Whether a request may have executed without an answer.
    may_have_executed: bool,
    /// Timed-out attempts; every one doubles the next attempt's time.
    timeouts: u32,
}

impl<'a> Operation<'a> {
    pub(super) fn new(client: &'a KvClient) -> Self {
        let timeout_ns = u64::try_from(client.timeout.as_nanos()).unwrap_or(u64::MAX);
        let deadline_ns = client.shared.client.now().as_ns().saturating_add(timeout_ns);
        Self {
            client,
            deadline_ns,
            stale: None,
            has_effects: false,
            may_have_executed: false,
            timeouts: 0,
        }
    }

    /// A read. Stale reads may go to any replica; reads of a key always go to the same replica.
    pub(super) fn read(client: &'a KvClient, consistency: Consistency, key: &'a [u8]) -> Self {
        Self { stale: (consistency == Consistency::Stale).then_some(key), ..Self::new(client) }
    }

    /// Marks the operation as one with effects.
    pub(super) fn with_effects(self) -> Self {
        Self { has_effects: true, ..self }
    }

    /// Returns true if an earlier copy of the request may have been executed, or may be yet.
    pub(super) fn may_have_executed(&self) -> bool {
        self.may_have_executed
    }

    pub(super) fn time_left(&self) -> Duration {
        Duration::from_nanos(
            self.deadline_ns.saturating_sub(self.client.shared.client.now().as_ns()),
        )
    }

    /// Makes calls until one has an answer for the operation.
    pub(super) async fn ask(
        &mut self,
        method: u16,
        encode: impl Fn(&mut Vec<u8>),
    ) -> Result<Response, KvError> {
        loop {
            // Longer attempts keep the client from asking a slow cluster ever more often.
            let attempt = self.client.shared.config.attempt_timeout;
            let attempt = attempt.saturating_mul(1 << self.timeouts.min(DOUBLINGS_MAX));
            let mut options = CallOptions::new()
                .deadline(petrel::Time::from_ns(self.deadline_ns))
                .timeout(attempt)
                .wait_for_ready();
            if let Some(key) = self.stale {
                options = options.key(key);
            }
            let mut request = Vec::with_capacity(REQUEST_BYTES);
            encode(&mut request);
            match self.client.shared.client.call(method, request).options(options).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => self.note(&failure)?,
            }
        }
    }

    /// Handles a failed call: returns an error if the operation ends.
    fn note(&mut self, failure: &Error) -> Result<(), KvError> {
        let may_have_run =
            matches!(failure.execution, Execution::MayHaveExecuted | Execution::Answered);
        self.may_have_executed |= may_have_run && self.has_effects && !planted("kv_client_is_sure");
        let is_late = failure.status == Status::DeadlineExceeded;
        self.timeouts += u32::from(is_late);
        let is_lost = failure.status == Status::Unavailable && may_have_run;
        if (is_late || is_lost) && !self.time_left().is_zero() {
            return Ok(());
        }
        let last = failure.message.clone();
        Err(match failure.execution {
            _ if self.may_have_executed => KvError::Unknown { last },
            Execution::Answered => KvError::Protocol(last),
            _ => KvError::Timeout { last },
        })
    }

    /// The error for a refusal that every replica would return.
    pub(super) fn refused(&self, refusal: Refusal<'_>) -> KvError {
        self.misunderstood(refusal.to_string())
    }

    /// The error for an answer that cannot be decoded.
    pub(super) fn not_understood(&mut self, error: &DecodeError) -> KvError {
        self.may_have_executed |= self.has_effects;
        self.misunderstood(format!("the answer is none of this service: {error}"))
    }

    fn misunderstood(&self, last: String) -> KvError {
        if self.may_have_executed { KvError::Unknown { last } } else { KvError::Protocol(last) }
    }
}
