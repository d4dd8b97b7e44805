//! The client: a place for each call in flight, looked at by turns.

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

/// A bulk call in flight at a time.
struct Lane {
    bulk: Bulk,
    /// The application's own data, if they are to be copied.
    memory: Option<Vec<u8>>,
    call: u64,
    pending: Option<Pending>,
}

fn bulks(node: &Node<ipc::Service>, plan: Plan, is_lent: bool) -> Result<Outcome, Failure> {
    let service = bulk_service(node)?;
    let client = service.client_builder().initial_max_slice_len(BULK_BYTES).create()?;
    let mut lanes = lanes(&client, plan.in_flight, is_lent)?;
    let mut meter = Meter::start(plan);
    for lane in &mut lanes {
        lane.start(&client, &mut meter)?;
    }
    while meter.in_flight() > 0 {
        for lane in &mut lanes {
            let Some(pending) = &lane.pending else { continue };
            let Some(reply) = pending.receive()? else { continue };
            meter.end(lane.call, lane.bulk.is_reply(reply.payload()))?;
            drop(reply);
            lane.start(&client, &mut meter)?;
        }
        hint::spin_loop();
    }
    Ok(meter.finish()?)
}

/// Places for calls. Memory that is lent is filled now: it comes back later with what was written to
/// it, so that the part of a request that does not change is there already.
fn lanes(client: &BulkClient, count: usize, is_lent: bool) -> Result<Vec<Lane>, Failure> {
    let mut lanes = Vec::new();
    let mut lent = Vec::new();
    for _ in 0..count {
        let mut memory = vec![0; BULK_BYTES];
        let bulk = Bulk::fill(&mut memory);
        if is_lent {
            lent.push(client.loan_slice_uninit(BULK_BYTES)?.write_from_slice(&memory));
        }
        lanes.push(Lane { bulk, memory: (!is_lent).then_some(memory), call: 0, pending: None });
    }
    Ok(lanes)
}

impl Lane {
    fn start(&mut self, client: &BulkClient, meter: &mut Meter) -> Result<(), Failure> {
        self.pending = None;
        let Some(call) = meter.begin() else { return Ok(()) };
        self.call = call;
        let request = client.loan_slice_uninit(BULK_BYTES)?;
        let request = match &mut self.memory {
            Some(memory) => {
                self.bulk.stamp(memory, call);
                request.write_from_slice(memory)
            }
            None => {
                // SAFETY: bytes have no invalid values, and the memory was mapped with zeros or
                // written by a call before. Were they not the bytes that are wanted, the sum in the
                // reply would tell.
                let mut request = unsafe { request.assume_init() };
                self.bulk.stamp(request.payload_mut(), call);
                request
            }
        };
        self.pending = Some(request.send()?);
        Ok(())
    }
}
