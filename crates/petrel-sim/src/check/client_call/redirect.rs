//! Calls to services with a leader: the remaining servers answer with a redirect, and execute nothing. The leader of a call
//! changes with time. After the faults every server leads.

use petrel::client::{Judge, Verdict};

use super::{ClientCall, Work};
use crate::check::ledger::Ledger;
use crate::check::node::{Phase, Shared, Target};
use crate::fabric::SimAddr;

/// How long a server leads.
const TERM_NS: u64 = 2_000_000;

/// The first bytes of a redirect. No answer begins with these bytes, except by an accident that no seed will see.
const REDIRECT: &[u8; 8] = b"redirect";

/// Returns a redirect to a server, or to any other.
fn message(leader: Option<SimAddr>) -> Vec<u8> {
    let name = leader.map(|at| [at.host.0.to_le_bytes(), at.port.to_le_bytes()].concat());
    [&REDIRECT[..], &name.unwrap_or_default()].concat()
}

fn is_redirect(response: &[u8]) -> bool {
    response.starts_with(REDIRECT)
}

/// Makes the judge of a client that knows these servers.
pub(super) fn judge(servers: &[Target]) -> Judge {
    let known: Vec<(Vec<u8>, petrel::client::Target)> = servers
        .iter()
        .map(|target| (message(Some(target.at)), (target.remote, target.endpoint).into()))
        .collect();
    Judge::new(move |method, response| {
        assert_eq!(method, Work::Led.number(), "a led client makes led calls alone");
        match is_redirect(response) {
            true => {
                let named = known.iter().find(|(name, _)| name == response);
                Verdict::Redirect(named.map(|(_, target)| *target))
            }
            false => Verdict::Leads,
        }
    })
}

impl ClientCall {
    fn leader(&self, now_ns: u64) -> Option<SimAddr> {
        let place = (now_ns / TERM_NS) as usize % self.servers.len().max(1);
        self.servers.get(place).copied()
    }
}

/// Returns the redirect with which a server answers a request; `None` if the server leads.
pub(in crate::check) fn redirect(shared: &Shared, work: Work, id: u32) -> Option<Vec<u8>> {
    if work != Work::Led || shared.common.phase.get() != Phase::Active {
        return None;
    }
    let ledger = &mut *shared.ledger();
    let now_ns = ledger.now_ns;
    let leader = ledger.client_call(id)?.leader(now_ns)?;
    if leader == shared.at {
        return None;
    }
    let response = message((!id.is_multiple_of(3)).then_some(leader));
    ledger.redirect(id, shared.at, response.clone());
    Some(response)
}

impl Ledger {
    /// Records that a server has redirected a call. Such an attempt does not count.
    fn redirect(&mut self, id: u32, server: SimAddr, response: Vec<u8>) {
        self.client_call_counts.redirects += 1;
        let Some(client_call) = self.client_call_mut(id) else { return };
        client_call.redirects.push((server, response));
    }

    pub(in crate::check) fn is_redirect_of(
        &self,
        id: u32,
        server: SimAddr,
        response: &[u8],
    ) -> bool {
        let redirects = self.client_call(id).map(|client_call| &client_call.redirects);
        redirects
            .is_some_and(|all| all.iter().any(|(by, known)| *by == server && known == response))
    }
}
