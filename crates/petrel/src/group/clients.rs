//! Calls to groups of clients, from any thread.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::collect::check_members;
use super::{Collect, GroupFailure, Late, Member, Need, Verdict};
use crate::client::{Call, Client, Targets};
use crate::error::Error;
use crate::local::client_call::Response;
use crate::values::CallOptions;

/// A group of clients for calls from any thread or task. Clones are the same group.
///
/// A member reconnects, retries and follows drains as its client does. An unreachable member fails, and the next call
/// tries it again. Every member gets a copy of the message; a [`Group`](super::Group) of sessions on an endpoint's
/// thread shares a single message.
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
    /// Creates a group of these clients.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for no members, too many, or a client listed twice.
    pub fn new(members: impl IntoIterator<Item = Client>) -> Result<Self, Error> {
        let members: Arc<[Client]> = members.into_iter().collect();
        let names: Vec<_> = members.iter().map(Client::name).collect();
        check_members(&names)?;
        Ok(Self { members })
    }

    /// Connects a client to each target, and waits until all are connected.
    ///
    /// # Errors
    /// The error of the first unreachable target; INVALID_ARGUMENT for none or too many.
    pub async fn connect<T: Into<Targets>>(
        members: impl IntoIterator<Item = T>,
    ) -> Result<Self, Error> {
        let mut connected = Vec::new();
        for member in members {
            connected.push(Client::connect(member).await?);
        }
        Self::new(connected)
    }

    /// Returns the members in order.
    pub fn members(&self) -> &[Client] {
        &self.members
    }

    /// Sends a message to all members, and waits until the outcome is certain: enough responses, or too many failures.
    /// Returns the outcome of every member, by its place. Dropping the future earlier cancels all calls.
    ///
    /// # Errors
    /// Too few members answered successfully, or no outcome could satisfy the call.
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
