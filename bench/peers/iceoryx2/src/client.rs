//! The client: a place for every call in flight, polled in turn.

use std::collections::HashSet;
use std::hint;

use iceoryx2::pending_response::PendingResponse;
use iceoryx2::port::client::Client;
use iceoryx2::prelude::*;
use peers_common::{
    BULK_BYTES, Bulk, ClientArgs, Failure, Meter, Outcome, Plan, Workload, args, content,
};

use crate::{Small, bulk_service, echo_service, node};

pub(crate) fn call(args: ClientArgs) -> Result<Outcome, Failure> {
    let is_lent = match args.variant.as_str() {
        "copied" => false,
        "lent" => true,
        other => return Err(args::unknown(other)),
    };
    let node = node(&args.address)?;
    match args.plan.workload {
        Workload::Echo => echoes(&node, args.plan),
        Workload::Bulk => bulks(&node, args.plan, is_lent),
    }
}

fn echoes(node: &Node<ipc::Service>, plan: Plan) -> Result<Outcome, Failure> {
    let client = echo_service(node)?.client_builder().create()?;
    let mut meter = Meter::start(plan);
    let start = |meter: &mut Meter| -> Result<_, Failure> {
        let Some(call) = meter.begin() else { return Ok(None) };
        let request = client.loan_uninit()?.write_payload(content::small(call));
        Ok(Some((call, request.send()?)))
    };
    let mut lanes = Vec::new();
    for _ in 0..plan.in_flight {
        lanes.extend(start(&mut meter)?);
    }
    while !lanes.is_empty() {
        for index in (0..lanes.len()).rev() {
            let (call, pending) = &lanes[index];
            let Some(reply) = pending.receive()? else { continue };
            meter.end(*call, content::is_small(*call, reply.payload()))?;
            drop(reply);
            match start(&mut meter)? {
                Some(lane) => lanes[index] = lane,
                None => drop(lanes.swap_remove(index)),
            }
        }
        hint::spin_loop();
    }
    Ok(meter.finish()?)
}

type BulkClient = Client<ipc::Service, [u8], (), Small, ()>;
type Pending = PendingResponse<ipc::Service, [u8], (), Small, ()>;

/// The place of one bulk call in flight.
struct Lane {
    bulk: Bulk,
    /// The application's own data.
    memory: Vec<u8>,
    call: u64,
    pending: Option<Pending>,
}

/// Starts calls. Lent memory is reused with its former contents, so the constant words are written only
/// once per piece of memory.
struct Starter {
    client: BulkClient,
    is_lent: bool,
    /// Addresses of the pieces whose constant words are written.
    written: HashSet<usize>,
}

fn bulks(node: &Node<ipc::Service>, plan: Plan, is_lent: bool) -> Result<Outcome, Failure> {
    let service = bulk_service(node)?;
    let client = service.client_builder().initial_max_slice_len(BULK_BYTES).create()?;
    let mut starter = Starter { client, is_lent, written: HashSet::new() };
    let mut lanes: Vec<_> = (0..plan.in_flight).map(|_| Lane::new()).collect();
    let mut meter = Meter::start(plan);
    for lane in &mut lanes {
        starter.start(lane, &mut meter)?;
    }
    while meter.in_flight() > 0 {
        for lane in &mut lanes {
            let Some(pending) = &lane.pending else { continue };
            let Some(reply) = pending.receive()? else { continue };
            meter.end(lane.call, lane.bulk.is_reply(reply.payload()))?;
            drop(reply);
            starter.start(lane, &mut meter)?;
        }
        hint::spin_loop();
    }
    Ok(meter.finish()?)
}

impl Lane {
    fn new() -> Self {
        let mut memory = vec![0; BULK_BYTES];
        let bulk = Bulk::fill(&mut memory);
        Self { bulk, memory, call: 0, pending: None }
    }
}

impl Starter {
    fn start(&mut self, lane: &mut Lane, meter: &mut Meter) -> Result<(), Failure> {
        lane.pending = None;
        let Some(call) = meter.begin() else { return Ok(()) };
        lane.call = call;
        let request = self.client.loan_slice_uninit(BULK_BYTES)?;
        let request = if !self.is_lent {
            lane.bulk.stamp(&mut lane.memory, call);
            request.write_from_slice(&lane.memory)
        } else {
            let mut request = if self.written.insert(request.payload().as_ptr().addr()) {
                request.write_from_slice(&lane.memory)
            } else {
                // SAFETY: all bytes of this piece were written by the branch above before.
                unsafe { request.assume_init() }
            };
            lane.bulk.stamp(request.payload_mut(), call);
            request
        };
        lane.pending = Some(request.send()?);
        Ok(())
    }
}
