//! Hedged attempts: a second one while the first has not ended, and whoever answers first wins
//! (Dean and Barroso, "The Tail at Scale", 2013).

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use super::Channel;
use super::attempt::{Wanted, may_retry};
use super::call::Progress;
use crate::error::Error;
use crate::msgbuf::MsgBuf;

type Outcome = Result<MsgBuf, Error>;

/// Attempts that are on the way, each with its number.
type Attempts<'a> = Vec<(u32, Pin<Box<dyn Future<Output = Outcome> + 'a>>)>;

impl Channel {
    /// Begins an attempt, and another one each time that none has ended for `after`, as long as
    /// attempts and budget allow. Gives the first success, or the first failure that ends the call; the
    /// rest is cancelled.
    pub(super) async fn attempt_hedged(
        &self,
        wanted: &Wanted<'_>,
        after: Duration,
        progress: &mut Progress,
    ) -> Outcome {
        let first = progress.attempts + 1;
        let mut attempts = Attempts::new();
        loop {
            progress.begin();
            let attempt = self.attempt(wanted);
            attempts.push((progress.attempts, Box::pin(attempt)));
            loop {
                let may_hedge = progress.attempts < self.inner.config.attempts_max;
                let pause = may_hedge.then_some(after);
                let Some((number, outcome)) = self.first_of(&mut attempts, pause).await else {
                    // None has ended in time. Without leave to make another, those go on.
                    if self.may_try_again(wanted.method) {
                        break;
                    }
                    continue;
                };
                if attempts.is_empty() || is_decisive(&outcome) {
                    let won = number > first && outcome.is_ok();
                    self.inner.counters.hedges_won.add(u64::from(won));
                    return outcome;
                }
                // Another is on the way: its end counts.
                if let Err(failure) = outcome {
                    progress.note(&failure);
                }
            }
            self.inner.counters.hedges.increment();
        }
    }

    /// Takes out the first attempt that ends; `None` if none does before the pause is over.
    async fn first_of(
        &self,
        attempts: &mut Attempts<'_>,
        pause: Option<Duration>,
    ) -> Option<(u32, Outcome)> {
        let mut sleep = pause.map(|pause| self.inner.handle.sleep(pause));
        poll_fn(|cx| {
            for place in 0..attempts.len() {
                let (number, attempt) = &mut attempts[place];
                if let Poll::Ready(outcome) = attempt.as_mut().poll(cx) {
                    let number = *number;
                    drop(attempts.swap_remove(place));
                    return Poll::Ready(Some((number, outcome)));
                }
            }
            let sleep = sleep.as_mut().map(Pin::new);
            let is_over = sleep.is_some_and(|sleep| sleep.poll(cx).is_ready());
            if is_over { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }
}

/// Whether an attempt's end is the call's. Hedged calls are idempotent.
fn is_decisive(outcome: &Outcome) -> bool {
    outcome.as_ref().err().is_none_or(|failure| !may_retry(failure, true))
}
