//! Snapshots move between replicas chunk by chunk; the receiver requests each chunk.

use petrel::endpoint::{CallOptions, Handled};
use petrel::task::Session;
use petrel::{Context, Request, Status};

use super::{PEER_TIMEOUT, Shared, State};
use crate::replica::member::Fetch;
use crate::replica::methods;
use crate::replica::snapshot::{ChunkReply, ChunkRequest};
use crate::store::{Builder, Store};

const CHUNK_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

impl Shared {
    /// Fetches a snapshot, and reports a failure to the snapshot's owner. Returns true if the owner can be reached.
    pub(super) fn begin_fetch(&self, state: &mut State, fetch: Fetch) -> bool {
        let Some(session) = state.links.session(fetch.from).cloned() else {
            if let Some(member) = &mut state.member {
                member.end_fetch(fetch, None);
            }
            return false;
        };
        let shared = self.clone();
        state.handle.spawn(async move {
            let store = fetch_store(&session, fetch.index).await;
            let end = |state: &mut State| {
                let member = state.member.as_mut();
                member.is_some_and(|member| member.end_fetch(fetch, store))
            };
            let is_taken = end(&mut shared.borrow_mut());
            if !is_taken {
                let name = shared.borrow().own_name().to_le_bytes();
                let options = CallOptions::new().timeout(PEER_TIMEOUT);
                // If this report is lost, the owner notices the absence of requests for chunks.
                let _ = session.call(methods::SNAPSHOT_FAILED, &name).options(options).await;
            }
        });
        true
    }

    pub(crate) fn handle_snapshot(&self, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        let answer = match (ChunkRequest::decode(request.data()), &mut self.borrow_mut().member) {
            (Err(_), _) => Err("the request is none for a chunk"),
            (_, None) => Err("this replica is no member yet"),
            (Ok(wanted), Some(member)) => member.snapshots.answer(wanted),
        };
        match answer {
            Ok(chunk) => request.reply(cx, &chunk),
            Err(why) => request.fail(cx, Status::NotFound, why),
        }
    }

    pub(crate) fn handle_snapshot_failed(
        &self,
        cx: &mut Context<'_>,
        request: Request<'_>,
    ) -> Handled {
        let peer = <[u8; 8]>::try_from(request.data()).map(u64::from_le_bytes);
        if let (Ok(peer), Some(member)) = (peer, &mut self.borrow_mut().member) {
            member.raft.report_snapshot(peer, raft::SnapshotStatus::Failure);
        }
        request.reply(cx, &[])
    }
}

/// Fetches a snapshot, chunk by chunk.
async fn fetch_store(session: &Session, index: u64) -> Option<Store> {
    let mut builder = Builder::new();
    for chunk in 0.. {
        let request = ChunkRequest { index, chunk }.encode();
        let options = CallOptions::new().timeout(CHUNK_TIMEOUT);
        let answer = session.call(methods::SNAPSHOT, &request).options(options).await.ok()?;
        let ChunkReply { is_last, chunk } = ChunkReply::decode(&answer).ok()?;
        builder.add(chunk).ok()?;
        if is_last {
            return builder.finish().ok();
        }
    }
    None
}
