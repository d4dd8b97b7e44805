//! The client: a lane for each call in flight, each with its two buffers for the whole window.

use std::cell::RefCell;

use peers_common::{
    BULK_BYTES, Bulk, ClientArgs, Failure, Meter, Outcome, Plan, REPLY_BYTES, SMALL_BYTES,
    Workload, content,
};
use petrel::endpoint::SessionId;
use petrel::{Context, Endpoint, MsgBuf, Nexus, Reply};

use crate::{BULK, ECHO, endpoint, variant};

thread_local! {
    /// The window under way. Continuations are plain functions, so that no call allocates, and
    /// find it here.
    static LOAD: RefCell<Option<Load>> = const { RefCell::new(None) };
}

struct Load {
    session: SessionId,
    method: u16,
    meter: Meter,
    lanes: Vec<Lane>,
    failure: Option<String>,
}

struct Lane {
    call: u64,
    /// The content of large requests.
    bulk: Option<Bulk>,
}

pub(crate) fn call(args: ClientArgs) -> Result<Outcome, Failure> {
    let (transports, _) = variant(&args.variant)?;
    let nexus = Nexus::builder().transports(transports).start()?;
    let mut config = endpoint(&args.variant)?;
    config.sessions.accept = false;
    let mut client = nexus.endpoint(config)?;
    let session = client.connect_wait(args.address.parse()?)?;
    start(&mut client, session, args.plan)?;
    client.run_until(|_, _| is_over());
    let load = LOAD.take().ok_or("the window is gone")?;
    match load.failure {
        Some(failure) => Err(failure.into()),
        None => Ok(load.meter.finish()?),
    }
}

/// Starts the first call of every lane.
fn start(client: &mut Endpoint, session: SessionId, plan: Plan) -> Result<(), Failure> {
    let (method, request_bytes, reply_bytes) = match plan.workload {
        Workload::Echo => (ECHO, SMALL_BYTES, SMALL_BYTES),
        Workload::Bulk => (BULK, BULK_BYTES, REPLY_BYTES),
    };
    let mut buffers = Vec::new();
    let mut lanes = Vec::new();
    for _ in 0..plan.in_flight {
        let mut request = client.alloc(request_bytes)?;
        request.set_len(request_bytes);
        let bulk = (plan.workload == Workload::Bulk).then(|| Bulk::fill(&mut request));
        lanes.push(Lane { call: 0, bulk });
        buffers.push((request, client.alloc(reply_bytes)?));
    }
    let mut load = Load { session, method, meter: Meter::start(plan), lanes, failure: None };
    for (index, (request, response)) in buffers.into_iter().enumerate() {
        load.next(&mut client.context(), index, request, response);
    }
    LOAD.set(Some(load));
    Ok(())
}

fn is_over() -> bool {
    LOAD.with_borrow(|load| {
        load.as_ref().is_none_or(|load| load.failure.is_some() || load.meter.in_flight() == 0)
    })
}

/// The continuation of every call.
fn on_reply(cx: &mut Context<'_>, reply: Reply, lane: u64) {
    LOAD.with_borrow_mut(|load| {
        if let Some(load) = load {
            load.on_reply(cx, reply, lane as usize);
        }
    });
}

impl Load {
    #[inline]
    fn next(&mut self, cx: &mut Context<'_>, index: usize, mut request: MsgBuf, response: MsgBuf) {
        let Some(call) = self.meter.begin() else { return };
        let lane = &mut self.lanes[index];
        lane.call = call;
        match &mut lane.bulk {
            None => request.copy_from_slice(&content::small(call)),
            Some(bulk) => bulk.stamp(&mut request, call),
        }
        let called =
            cx.call(self.session, self.method, request).into_buffer(response).then(move |_, cx, reply| on_reply(cx, reply, index as u64));
        if let Err(rejected) = called {
            self.failure = Some(rejected.error.to_string());
        }
    }

    #[inline]
    fn on_reply(&mut self, cx: &mut Context<'_>, reply: Reply, index: usize) {
        match self.end(&reply, index) {
            Ok(()) => self.next(cx, index, reply.request, reply.response),
            Err(failure) => self.failure = Some(failure),
        }
    }

    #[inline]
    fn end(&mut self, reply: &Reply, index: usize) -> Result<(), String> {
        let message = reply.message().map_err(ToString::to_string)?;
        let lane = &self.lanes[index];
        let is_right = match &lane.bulk {
            None => content::is_small(lane.call, message),
            Some(bulk) => bulk.is_reply(message),
        };
        self.meter.end(lane.call, is_right)
    }
}
