//! A call to a group as a future.

use super::{Collect, Group, GroupFailure, Late, Member, Need, Verdict};
use crate::endpoint::start_call;
use crate::local::{Handle, Parallel};
use crate::msgbuf::MsgBuf;
use crate::values::{CallOptions, SharedMsg};

impl Group {
    /// Sends a message to all members, and waits until the outcome is certain: enough responses, or too many failures.
    /// Returns the outcome of every member.
    ///
    /// ```
    /// # use petrel::endpoint::{CallOptions, EndpointConfig};
    /// # use petrel::Nexus;
    /// # use petrel::group::{Group, Late, Need};
    /// # use std::net::SocketAddr;
    /// # fn server() -> SocketAddr {
    /// #     let server = Nexus::builder().listen("127.0.0.1:0".parse().unwrap()).start().unwrap();
    /// #     let address = server.local_addr().unwrap();
    /// #     std::thread::spawn(move || {
    /// #         let mut endpoint = server.endpoint(EndpointConfig::default()).unwrap();
    /// #         endpoint.on(1, |_, cx, request| request.reply(cx, b"written"));
    /// #         endpoint.run_until(|_, _| false);
    /// #     });
    /// #     address
    /// # }
    /// # let replicas = [server(), server(), server()];
    /// # let mut endpoint = Nexus::builder().start()?.endpoint(EndpointConfig::default())?;
    /// # let handle = endpoint.handle();
    /// # endpoint.block_on(async move {
    /// let mut sessions = Vec::new();
    /// for replica in replicas {
    ///     sessions.push(handle.connect(replica).await?);
    /// }
    /// let group = Group::new(sessions.iter().map(|session| session.id()))?;
    /// let record = handle.share(b"one record")?;
    /// let options = CallOptions::new().timeout(std::time::Duration::from_secs(1));
    /// let members = group
    ///     .call_async(&handle, 1, &record, Need::Quorum(2), options, Late::Finish)
    ///     .await?;
    /// assert!(members.iter().filter(|member| member.outcome.answer().is_some()).count() >= 2);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Too few members answered successfully, or no outcome could satisfy the call.
    pub async fn call_async<S>(
        &self,
        handle: &Handle<S>,
        method: u16,
        message: &SharedMsg,
        need: Need,
        options: CallOptions,
        late: Late,
    ) -> Result<Vec<Member<MsgBuf>>, GroupFailure<MsgBuf>> {
        let mut collect = Collect::new(self.members().iter().copied(), need)?;
        let mut calls = Parallel::new(self.members().len());
        let options =
            options.begun(|| handle.clock_now().as_ns()).no_later_than(handle.inherited_ns());
        for (place, session) in self.members().iter().enumerate() {
            let call = start_call(handle.hub(), (*session, method), message, None, options);
            calls.push(place as u64, call);
        }
        while let Some((place, outcome)) = calls.next().await {
            if let Verdict::Decided(_) = collect.take(place as usize, outcome) {
                break;
            }
        }
        match late {
            Late::Finish => calls.detach(),
            Late::Cancel => drop(calls),
        }
        collect.finish()
    }
}
