//! Clients: one that waits for each call, and one for any thread and executor.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Bound;
use std::time::Duration;

use petrel::endpoint::{AllowedTransports, EndpointId};
use petrel::endpoint::{CallOptions, EndpointConfig, SessionId};
use petrel::{Endpoint, Nexus};

use petrel_planted::planted;

use crate::bytes;
use crate::error::ClientError;
use crate::limits::SCAN_PAIRS_MAX;
use crate::wire::{
    BytesPair, DeleteBytes, DeleteWord, GetBytes, GetWord, Method, Page, PutBytes, PutWord,
    ScanBytes, ScanWords, Span, Status, Sum, SumWords,
};

/// How a client is set up.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The server's control address.
    pub server: SocketAddr,
    /// Which of its endpoints.
    pub endpoint: u16,
    /// Transports to use.
    pub transports: AllowedTransports,
    /// How long to wait for a connection, and for each answer.
    pub timeout: Duration,
}

impl ClientConfig {
    /// A client of a server's first endpoint, by shared memory where that is possible.
    pub fn to(server: SocketAddr) -> Self {
        let transports = AllowedTransports { udp: true, shm: true };
        Self { server, endpoint: 0, transports, timeout: Duration::from_secs(5) }
    }

    /// A nexus and an endpoint for calls to the server.
    fn endpoint(&self) -> Result<Endpoint, ClientError> {
        let mut builder =
            Nexus::builder().transports(self.transports).connect_timeout(self.timeout);
        if !self.server.ip().to_canonical().is_loopback() {
            // Who names another host wants to call it; nobody can call this process for it.
            builder = builder.insecure();
        }
        let mut config = EndpointConfig::default();
        config.transports = self.transports;
        config.data_address = Some(data_address(self.server.ip().to_canonical()));
        config.sessions.accept = false;
        Ok(builder.start()?.endpoint(config)?)
    }
}

/// The data port must be of the server's family, and on loopback only if the server is.
fn data_address(server: IpAddr) -> IpAddr {
    match (server, server.is_loopback()) {
        (IpAddr::V4(_), true) => Ipv4Addr::LOCALHOST.into(),
        (IpAddr::V4(_), false) => Ipv4Addr::UNSPECIFIED.into(),
        (IpAddr::V6(_), true) => Ipv6Addr::LOCALHOST.into(),
        (IpAddr::V6(_), false) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// A client that makes one call at a time, on the thread that made it. [`SharedClient`] is for more.
pub struct Client {
    endpoint: Endpoint,
    session: SessionId,
    options: CallOptions,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// [`ClientError`], in bounded time.
    pub fn connect(config: &ClientConfig) -> Result<Self, ClientError> {
        let mut endpoint = config.endpoint()?;
        let session = endpoint.connect_wait_to(config.server, EndpointId(config.endpoint))?;
        let options = CallOptions::new().timeout(config.timeout);
        Ok(Self { endpoint, session, options })
    }

    /// Calls a method.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn call<M: Method>(
        &mut self,
        request: &M::Request<'_>,
    ) -> Result<M::Response, ClientError> {
        let request = M::encode_request(request);
        let answer =
            self.endpoint.call(self.session, M::NUMBER, &request).options(self.options).wait()?;
        Ok(M::decode_response(&answer)?)
    }

    /// A word's value.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn get_word(&mut self, key: u64) -> Result<Option<u64>, ClientError> {
        self.call::<GetWord>(&key)
    }

    /// Sets a word's value; gives the former one.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn put_word(&mut self, key: u64, value: u64) -> Result<Option<u64>, ClientError> {
        self.call::<PutWord>(&(key, value))
    }

    /// Removes a word; gives its value.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn delete_word(&mut self, key: u64) -> Result<Option<u64>, ClientError> {
        self.call::<DeleteWord>(&key)
    }

    /// Sum of the values of up to `count` words that follow a key, in one call.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn sum_words(&mut self, after: u64, count: u32) -> Result<Sum, ClientError> {
        self.call::<SumWords>(&(after, count))
    }

    /// Up to `limit` words, in ascending order, by as many calls as it takes.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn scan_words(
        &mut self,
        from: Bound<u64>,
        limit: usize,
    ) -> Result<Vec<(u64, u64)>, ClientError> {
        let (mut from, mut all) = (from, Vec::new());
        loop {
            let wanted = page_limit(limit - all.len());
            let page = self.call::<ScanWords>(&Span { from, limit: wanted })?;
            let is_last = is_last(&page, wanted);
            all.extend(page.pairs);
            match all.last() {
                Some((key, _)) if !is_last && all.len() < limit => {
                    let repeats = planted("index_page_repeats_a_key");
                    from = if repeats { Bound::Included(*key) } else { Bound::Excluded(*key) };
                }
                _ => return Ok(all),
            }
        }
    }

    /// A value.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn get_bytes(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, ClientError> {
        self.call::<GetBytes>(&key)
    }

    /// Sets a value; tells whether there was a former one.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn put_bytes(&mut self, key: &[u8], value: &[u8]) -> Result<bool, ClientError> {
        bytes::check(key, value)?;
        self.call::<PutBytes>(&(key, value))
    }

    /// Removes a key; tells whether it was there.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn delete_bytes(&mut self, key: &[u8]) -> Result<bool, ClientError> {
        self.call::<DeleteBytes>(&key)
    }

    /// Up to `limit` pairs, in ascending order, by as many calls as it takes.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn scan_bytes(
        &mut self,
        from: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Vec<BytesPair>, ClientError> {
        let mut all: Vec<BytesPair> = Vec::new();
        loop {
            let from = all.last().map_or(from, |(key, _)| Bound::Excluded(&key[..]));
            let wanted = page_limit(limit - all.len());
            let page = self.call::<ScanBytes>(&Span { from, limit: wanted })?;
            let is_last = is_last(&page, wanted) || page.pairs.is_empty();
            all.extend(page.pairs);
            if is_last || all.len() >= limit {
                return Ok(all);
            }
        }
    }

    /// The server's counters.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn status(&mut self) -> Result<Vec<(String, u64)>, ClientError> {
        self.call::<Status>(&())
    }
}

fn page_limit(left: usize) -> u32 {
    left.min(SCAN_PAIRS_MAX as usize) as u32
}

/// Whether there is nothing behind a page.
fn is_last<P>(page: &Page<P>, wanted: u32) -> bool {
    !page.is_cut && page.pairs.len() < wanted as usize
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({:?})", self.session)
    }
}

/// Calls from any thread and in any executor, which outlive sessions and servers.
#[derive(Clone, Debug)]
pub struct SharedClient(petrel::Client);

impl SharedClient {
    /// Calls to servers of this service.
    pub fn new(client: petrel::Client) -> Self {
        Self(client)
    }

    /// Calls a method.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn call<M: Method>(
        &self,
        request: &M::Request<'_>,
    ) -> Result<M::Response, ClientError> {
        let request = M::encode_request(request);
        let answer = self.0.call(M::NUMBER, request).await?;
        Ok(M::decode_response(&answer)?)
    }

    /// Calls a method, with the thread parked until the answer comes.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn call_wait<M: Method>(
        &self,
        request: &M::Request<'_>,
    ) -> Result<M::Response, ClientError> {
        let request = M::encode_request(request);
        let answer = self.0.call(M::NUMBER, request).wait()?;
        Ok(M::decode_response(&answer)?)
    }
}
