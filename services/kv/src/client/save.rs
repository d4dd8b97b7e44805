//! Saves: all keys at one moment, block by block.

use std::future::pending;
use std::time::Duration;

use petrel::Client;
use petrel::client::Response;
use petrel::endpoint::CallOptions;

use super::error::not_understood;
use super::{KvClient, KvError};
use crate::api::{Consistency, Pairs, Refusal, SaveReply, SaveRequest, methods};
use crate::backup::Head;
use crate::pair_check::PairCheck;

/// Longest pause before a block: a save reads at most some 60 MB a second.
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// A save: the keys of the store at one moment, while writes go on.
///
/// The save belongs to the replica that began it. It goes on while another replica leads, and over a lost connection,
/// but ends with the replica's process. Drop the save to break it off.
#[derive(Debug)]
pub struct Save {
    of: KvClient,
    /// The replica that has the save.
    replica: Client,
    save: u64,
    head: Head,
    /// The number of the last block.
    block: u64,
    check: PairCheck,
    is_whole: bool,
    /// The pause before the next block, for the replica's other clients: three times the last block's time.
    pause: Duration,
}

/// Pairs of a save, in the receive buffer.
#[derive(Debug)]
pub struct SavedBlock {
    reply: Response,
}

impl KvClient {
    /// Begins a save of the present state: that of the leader, with all answered writes, or that of any replica, which
    /// may be slightly out of date and spares the leader the work. A replica makes at most two saves at a time.
    ///
    /// # Errors
    /// [`KvError`]; nothing was changed.
    pub async fn save(&self, consistency: Consistency) -> Result<Save, KvError> {
        let begin = SaveRequest::Begin { consistency };
        let reply = self.read(methods::SAVE, consistency, b"save", |out| begin.encode(out)).await?;
        let (save, head, address) = match SaveReply::decode(&reply) {
            Ok(SaveReply::Begun { save, revision, keys, bytes, address }) => {
                (save, Head { revision, keys, bytes }, address)
            }
            other => return Err(KvError::of_read(not_understood(other.err()))),
        };
        let address: std::net::SocketAddr = address
            .parse()
            .map_err(|_| KvError::Protocol(format!("the replica's address is '{address}'")))?;
        let client = &self.shared.client;
        let connected = async { Client::builder().beside(client).connect(address).await };
        let replica = client.timeout(self.timeout, connected).await.flatten();
        Ok(Save {
            of: self.clone(),
            replica: replica.map_err(KvError::of_read)?,
            save,
            head,
            block: 0,
            check: PairCheck::default(),
            is_whole: false,
            pause: Duration::ZERO,
        })
    }
}

impl SavedBlock {
    /// The pairs, in the order of their keys.
    pub fn pairs(&self) -> Pairs<'_> {
        match SaveReply::decode(&self.reply) {
            Ok(SaveReply::Block { pairs, .. }) => pairs,
            _ => unreachable!("a block was decoded when it arrived"),
        }
    }
}

impl Save {
    /// The saved state: its revision, and how much follows.
    pub fn head(&self) -> Head {
        self.head
    }

    /// Returns the next block; none after the last. The pairs of all blocks together were compared with the store's
    /// check when the last block was returned.
    ///
    /// # Errors
    /// [`KvError::Refused`] if the replica no longer has the save: begin another. Else as [`KvClient::get`].
    pub async fn next_block(&mut self) -> Result<Option<SavedBlock>, KvError> {
        if self.is_whole {
            return Ok(None);
        }
        let request = SaveRequest::Block { save: self.save, block: self.block + 1 };
        let client = &self.of.shared.client;
        if !self.pause.is_zero() {
            let _ = client.timeout(self.pause, pending::<()>()).await;
        }
        let begin = client.now();
        let reply = self.ask(request).await?;
        self.pause = (3 * client.now().since(begin)).min(PAUSE_MAX);
        if let Ok(Some(refusal)) = Refusal::of_reply(&reply) {
            return Err(KvError::Refused(refusal.to_string()));
        }
        let last = match SaveReply::decode(&reply) {
            Ok(SaveReply::Block { pairs, check }) => {
                let damaged = || KvError::Protocol("the save is not the store's".to_owned());
                self.check.add_all(pairs.iter()).map_err(|_| damaged())?;
                let found = (self.check.keys(), self.check.value());
                let is_endless = pairs.is_empty() && check.is_none();
                if is_endless || check.is_some_and(|check| found != (self.head.keys, check)) {
                    return Err(damaged());
                }
                check.is_some()
            }
            other => return Err(KvError::of_read(not_understood(other.err()))),
        };
        self.block += 1;
        self.is_whole = last;
        Ok(Some(SavedBlock { reply }))
    }

    async fn ask(&self, request: SaveRequest) -> Result<Response, KvError> {
        let options = CallOptions::new().deadline(self.of.deadline()).idempotent().wait_for_ready();
        let call = self.replica.call(methods::SAVE, request.to_vec()).options(options);
        call.await.map_err(KvError::of_read)
    }
}

impl Drop for Save {
    fn drop(&mut self) {
        // Without this message, the replica frees the save's memory some seconds later.
        let end = SaveRequest::End { save: self.save }.to_vec();
        self.replica.call(methods::SAVE, end).detach();
    }
}
