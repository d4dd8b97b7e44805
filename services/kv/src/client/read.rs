//! Reads of one key.

use std::fmt;
use std::ops::Deref;

use petrel::client::Response;

use super::error::not_understood;
use super::{KvClient, KvError};
use crate::api::{Consistency, GetReply, GetRequest, methods};
use crate::wire::check_key;

/// The value of a key, in the receive buffer.
pub struct Value {
    reply: Response,
    /// The begin of the value in the reply.
    start: usize,
    revision: u64,
}

impl Value {
    /// The log index of the write that set the value. Use [`Expected::Revision`](crate::command::Expected::Revision)
    /// with this number for a write that must not overwrite later writes.
    pub fn revision(&self) -> u64 {
        self.revision
    }
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.reply[self.start..]
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" of revision {}", self.escape_ascii(), self.revision)
    }
}

impl KvClient {
    /// Reads a key. The read sees every previously answered write.
    ///
    /// # Errors
    /// [`KvError`], most likely [`KvError::Timeout`].
    pub async fn get(&self, key: &[u8]) -> Result<Option<Value>, KvError> {
        self.get_with(key, Consistency::Linearizable).await
    }

    /// Reads a key with the given consistency: from the leader, or from any replica.
    ///
    /// # Errors
    /// As [`KvClient::get`].
    pub async fn get_with(
        &self,
        key: &[u8],
        consistency: Consistency,
    ) -> Result<Option<Value>, KvError> {
        check_key(key).map_err(KvError::invalid)?;
        let request = GetRequest { consistency, key };
        let reply = self.read(methods::GET, consistency, key, |out| request.encode(out)).await?;
        match GetReply::decode(&reply) {
            Ok(GetReply::Found { revision, value }) => {
                let start = reply.len() - value.len();
                Ok(Some(Value { reply, start, revision }))
            }
            Ok(GetReply::NotFound) => Ok(None),
            other => Err(KvError::of_read(not_understood(other.err()))),
        }
    }
}
