//! A client that steers by partition, for any thread and any executor.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use petrel::Status;
use petrel::client::{ClientBuilder, Pending};
use petrel::endpoint::EndpointId;
use petrel::service::Malformed;

use super::wire::{
    self, CountMessage, DeleteMessage, Hello, StoreMessage, TouchMessage, Value, decode,
    decode_got, encode,
};
use crate::error::KeyError;
use crate::key::Hasher;
use crate::partition::{Counted, Removed, Stored, Verb};

/// The reason why a client has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The call failed, or was not made.
    #[error(transparent)]
    Failed(#[from] petrel::Error),
    /// The answer is malformed.
    #[error(transparent)]
    Answer(#[from] Malformed),
    /// The key is too long, or empty.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The server has another number of partitions than at the beginning.
    #[error("the server has {now} partitions now, and had {before}: connect again")]
    Partitions {
        /// The number at the beginning.
        before: usize,
        /// The number now.
        now: usize,
    },
}

impl ClientError {
    /// The gRPC status code.
    pub fn status(&self) -> Status {
        match self {
            Self::Failed(failure) => failure.status,
            Self::Answer(_) => Status::Internal,
            Self::Key(_) => Status::InvalidArgument,
            Self::Partitions { .. } => Status::FailedPrecondition,
        }
    }
}

/// Calls a cache, from any thread and in any executor. Clones share a client.
///
/// Each partition has a [`petrel::Client`], all on one endpoint. The selection of a server by key that `petrel::Client` has
/// does not fit: its mapping knows servers, and the owner of a key follows from the server's seed.
#[derive(Clone)]
pub struct CacheClient(Arc<Inner>);

struct Inner {
    /// A client for each partition.
    partitions: Vec<petrel::Client>,
    /// Changes when another process serves at the address.
    hasher: Mutex<Hasher>,
}

impl CacheClient {
    /// Connects to the endpoints of a server, with the settings of a builder.
    ///
    /// # Errors
    /// UNAVAILABLE if no server can be reached, or it is no cache.
    pub async fn connect(builder: ClientBuilder, address: SocketAddr) -> Result<Self, ClientError> {
        // Each client has a single partition: calls that name no endpoint may go to any endpoint.
        let first = builder.clone().connect((address, EndpointId(0))).await?;
        let hello = greet(&first).await?;
        let mut partitions = vec![first];
        for number in 1..hello.partitions.get() {
            let builder = builder.clone().beside(&partitions[0]);
            partitions.push(builder.connect((address, EndpointId(number))).await?);
        }
        let hasher = Mutex::new(Hasher::new(hello.seed));
        Ok(Self(Arc::new(Inner { partitions, hasher })))
    }

    /// Connects like [`CacheClient::connect`], and parks the thread meanwhile.
    ///
    /// # Errors
    /// As [`CacheClient::connect`].
    pub fn connect_wait(builder: ClientBuilder, address: SocketAddr) -> Result<Self, ClientError> {
        petrel::client::wait(Self::connect(builder, address))
    }

    /// The number of partitions.
    pub fn partitions(&self) -> usize {
        self.0.partitions.len()
    }

    /// Looks a key up.
    pub fn get(&self, key: &[u8]) -> Call<Option<Value>> {
        self.call(wire::GET, key, key.to_vec(), decode_got)
    }

    /// Sets a value that has no end.
    pub fn set(&self, key: &[u8], value: &[u8]) -> Call<Stored> {
        let (verb, compare) = (Verb::Set, None);
        self.store(&StoreMessage { verb, compare, flags: 0, ttl_s: 0, key, value })
    }

    /// Stores a value, with all conditions.
    pub fn store(&self, message: &StoreMessage<'_>) -> Call<Stored> {
        self.call(wire::STORE, message.key, message.encode(), decode)
    }

    /// Removes an item, if it has the version of `compare`.
    pub fn delete(&self, key: &[u8], compare: Option<u64>) -> Call<Removed> {
        let message = DeleteMessage { key: key.to_vec(), compare };
        self.call(wire::DELETE, key, encode(&message), decode)
    }

    /// Lets an item live for `ttl_s` seconds from now, or without end for 0. Returns false without such an item.
    pub fn touch(&self, key: &[u8], ttl_s: u32) -> Call<bool> {
        let message = TouchMessage { key: key.to_vec(), ttl_s };
        self.call(wire::TOUCH, key, encode(&message), decode)
    }

    /// Adds to a number, or subtracts from it.
    pub fn count(&self, message: &CountMessage) -> Call<Counted> {
        self.call(wire::COUNT, &message.key, encode(message), decode)
    }

    /// Removes all items, after some seconds.
    pub fn flush(&self, after_s: u32) -> Call<()> {
        let client = self.clone();
        Call::new(async move {
            client.greet_again().await?;
            for partition in &client.0.partitions {
                partition.call(wire::FLUSH, encode(&after_s)).await?;
            }
            Ok(())
        })
    }

    /// The counters of all partitions together.
    pub fn stats(&self) -> Call<Vec<(String, u64)>> {
        let client = self.clone();
        Call::new(async move {
            client.greet_again().await?;
            let mut sum: Vec<(String, u64)> = Vec::new();
            for partition in &client.0.partitions {
                let answer = partition.call(wire::STATS, []).await?;
                for (name, value) in decode::<Vec<(String, u64)>>(&answer)? {
                    match sum.iter_mut().find(|(known, _)| *known == name) {
                        Some((_, total)) => *total += value,
                        None => sum.push((name, value)),
                    }
                }
            }
            Ok(sum)
        })
    }

    /// Calls the owner of a key. If a different endpoint owns the key, the client asks for the seed, and calls once
    /// more: the request was not executed.
    fn call<T: 'static>(
        &self,
        method: u16,
        key: &[u8],
        request: Vec<u8>,
        read: fn(&[u8]) -> Result<T, Malformed>,
    ) -> Call<T> {
        let (client, key) = (self.clone(), key.to_vec());
        Call::new(async move {
            let answer = match client.partition(&key)?.call(method, request.clone()).await {
                Err(error) if error.status == Status::FailedPrecondition => {
                    client.greet_again().await?;
                    client.partition(&key)?.call(method, request).await?
                }
                answer => answer?,
            };
            Ok(read(&answer)?)
        })
    }

    fn partition(&self, key: &[u8]) -> Result<&petrel::Client, KeyError> {
        let hasher = self.0.hasher.lock().unwrap_or_else(PoisonError::into_inner);
        let number = hasher.key(key)?.partition(self.partitions());
        Ok(&self.0.partitions[number])
    }

    /// Learns the seed again, and makes sure that the server still has the same number of partitions.
    async fn greet_again(&self) -> Result<(), ClientError> {
        let hello = greet(&self.0.partitions[0]).await?;
        let (before, now) = (self.partitions(), usize::from(hello.partitions.get()));
        if before != now {
            return Err(ClientError::Partitions { before, now });
        }
        let mut hasher = self.0.hasher.lock().unwrap_or_else(PoisonError::into_inner);
        *hasher = Hasher::new(hello.seed);
        Ok(())
    }
}

async fn greet(client: &petrel::Client) -> Result<Hello, ClientError> {
    let answer = client.call(wire::HELLO, []).idempotent().await?;
    Ok(decode(&answer)?)
}

impl fmt::Debug for CacheClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CacheClient({} partitions)", self.partitions())
    }
}

/// A call. Awaiting or [waiting](Pending::wait) begins the call; an answer or a [`ClientError`] ends it.
pub type Call<T> = Pending<T, ClientError>;
