//! Reads of one key.

use std::fmt;
use std::ops::Deref;

use petrel::client::Response;

use super::operation::Operation;
use super::write::check_key;
use super::{KvClient, KvError};
use crate::api::{Consistency, GetReply, GetRequest, methods};

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
        check_key(key)?;
        let request = GetRequest { consistency, key };
        let mut operation = Operation::read(self, consistency, key);
        let reply = operation.ask(methods::GET, |out| request.encode(out)).await?;
        match GetReply::decode(&reply) {
            Ok(GetReply::Found { revision, value }) => {
                let start = reply.len() - value.len();
                Ok(Some(Value { reply, start, revision }))
            }
            Ok(GetReply::NotFound) => Ok(None),
            Ok(GetReply::Refused(refusal)) => Err(operation.refused(refusal)),
            Err(error) => Err(operation.not_understood(&error)),
        }
    }
}
