//! Calls to groups of clients, from any thread.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::collect::check_members;
use super::{Collect, GroupFailure, Late, Member, Need, Verdict};
use crate::client::{Call, Client, Response, Targets};
use crate::endpoint::CallOptions;
use crate::error::Error;

/// Clients that are called together, from any thread or task. Clones are the same group.
///
/// Each member reconnects, tries again and follows drain as its client does; a member that is away fails, and is called again by
/// the next call. Each gets a copy of the message of its own: on an endpoint's thread a [`Group`](super::Group) of sessions sends
/// one that all share.
///
/// ```
/// use petrel::group::{ClientGroup, Late, Need};
/// # use petrel::endpoint::{CallOptions, EndpointConfig};
/// # use petrel::Nexus;
/// # fn server() -> std::net::SocketAddr {
/// #     let server = Nexus::builder().listen("127.0.0.1:0".parse().unwrap()).start().unwrap();
/// #     let address = server.local_addr().unwrap();
/// #     std::thread::spawn(move || {
/// #         let mut endpoint = server.endpoint(EndpointConfig::default()).unwrap();
/// #         endpoint.on(1, |_, cx, request| request.reply(cx, b"written"));
/// #         endpoint.run_until(|_, _| false);
/// #     });
/// #     address
/// # }
/// # let (one, two, three) = (server(), server(), server());
/// # petrel::client::wait(async move {
/// let replicas = ClientGroup::connect([one, two, three]).await?;
/// let options = CallOptions::new().timeout(std::time::Duration::from_secs(1));
/// let members = replicas.call(1, b"one record", Need::Quorum(2), options, Late::Finish).await?;
/// assert!(members.iter().filter(|member| member.outcome.answer().is_some()).count() >= 2);
/// # Ok::<_, petrel::Error>(())
/// # })?;
/// # Ok::<(), petrel::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ClientGroup {
    members: Arc<[Client]>,
}

impl ClientGroup {
    /// A group of these clients.
    ///
    /// # Errors
    /// INVALID_ARGUMENT: none, too many, or one twice.
    pub fn new(members: impl IntoIterator<Item = Client>) -> Result<Self, Error> {
        let members: Arc<[Client]> = members.into_iter().collect();
        let names: Vec<_> = members.iter().map(Client::name).collect();
        check_members(&names)?;
        Ok(Self { members })
    }

    /// Connects a client to each of these, and waits until every one has been reached.
    ///
    /// # Errors
    /// That of the first that cannot be reached; INVALID_ARGUMENT for none or too many.
    pub async fn connect<T: Into<Targets>>(
        members: impl IntoIterator<Item = T>,
    ) -> Result<Self, Error> {
        let mut connected = Vec::new();
        for member in members {
            connected.push(Client::connect(member).await?);
        }
        Self::new(connected)
    }

    /// The members, in their order.
    pub fn members(&self) -> &[Client] {
        &self.members
    }

    /// Sends a message to all members, and waits until the outcome is certain: as many answers as are needed, or too many
    /// failures. It tells what is known of every member, by its place. When the future is dropped before, all calls are
    /// cancelled.
    ///
    /// # Errors
    /// Too few members have answered well, or no outcome could satisfy the call.
    pub async fn call(
        &self,
        method: u16,
        message: impl AsRef<[u8]>,
        need: Need,
        options: CallOptions,
        late: Late,
    ) -> Result<Vec<Member<Response, usize>>, GroupFailure<Response, usize>> {
        let mut collect = Collect::new(0..self.members.len(), need)?;
        let call = |(place, member): (usize, &Client)| {
            let call = member.call(method, message.as_ref()).options(options).started();
            MemberCall { place, call: Some(call) }
        };
        let mut calls: FuturesUnordered<_> = self.members.iter().enumerate().map(call).collect();
        while let Some((place, outcome)) = calls.next().await {
            if let Verdict::Decided(_) = collect.take(place, outcome) {
                break;
            }
        }
        if late == Late::Finish {
            calls.into_iter().filter_map(|member| member.call).for_each(Call::detach);
        }
        collect.finish()
    }
}

/// The call to a member, until it has ended.
struct MemberCall {
    place: usize,
    call: Option<Call>,
}

impl Future for MemberCall {
    type Output = (usize, Result<Response, Error>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let call = self.call.as_mut().expect("it has not ended");
        let outcome = ready!(Pin::new(call).poll(cx));
        self.call = None;
        Poll::Ready((self.place, outcome))
    }
}
