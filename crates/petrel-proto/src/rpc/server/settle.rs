//! Requests that wait for earlier requests get their turn after the end of a request (`docs/wire-protocol.md` §14.6).

use crate::rpc::Shared;
use crate::session::server::ServerSession;
use crate::session::{Role, SessionId, SessionTable};

/// Looks for requests that have run, and notes if a waiting request may run now.
#[cold]
pub(in crate::rpc) fn settle<B>(
    shared: &mut Shared<B>,
    id: SessionId,
    server: &mut ServerSession<B>,
) {
    if server.settle_order() {
        shared.notices.note_ready(id);
    }
}

/// Settles the order of a session after the answer of a numbered request.
pub(in crate::rpc) fn settle_session<B, T>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    id: SessionId,
) {
    if let Some(entry) = sessions.get_mut(id)
        && let Role::Server(server) = entry.role_mut()
    {
        settle(shared, id, server);
    }
}
