//! The client, which tracks the calls, because streams do not.

use std::hint;
use std::time::Instant;

use peers_common::{
    BULK_BYTES, Bulk, ClientArgs, Failure, Meter, Outcome, Plan, Workload, content,
};
use rusteron_media_driver::{Aeron, AeronExclusivePublication, AeronSubscription};

use crate::{
    BULK_STREAM, ECHO_STREAM, FRAGMENTS_MAX, PATIENCE, REPLY_STREAM, offer, publication,
    subscription,
};

pub(crate) fn call(args: ClientArgs) -> Result<Outcome, Failure> {
    let aeron = Aeron::connect_dir(&args.address)?;
    let stream = match args.plan.workload {
        Workload::Echo => ECHO_STREAM,
        Workload::Bulk => BULK_STREAM,
    };
    let replies = subscription(&aeron, REPLY_STREAM)?;
    let requests = publication(&aeron, stream)?;
    let started = Instant::now();
    while !requests.is_connected() || !replies.is_connected() {
        if started.elapsed() > PATIENCE {
            return Err("the streams do not connect".into());
        }
        hint::spin_loop();
    }
    match args.plan.workload {
        Workload::Echo => echoes(&requests, &replies, args.plan),
        Workload::Bulk => bulks(&requests, &replies, args.plan),
    }
}

/// Streams keep their order: the next reply belongs to the oldest call.
fn echoes(
    requests: &AeronExclusivePublication,
    replies: &AeronSubscription,
    plan: Plan,
) -> Result<Outcome, Failure> {
    let mut meter = Meter::start(plan);
    for _ in 0..plan.in_flight {
        start(requests, &mut meter)?;
    }
    let mut oldest = 1;
    while meter.in_flight() > 0 {
        let mut result = Ok(());
        let count = replies.poll_fn(
            |reply, _| {
                if result.is_ok() {
                    let is_right = content::is_small(oldest, reply);
                    result = meter.end(oldest, is_right).map_err(Failure::from);
                    oldest += 1;
                }
            },
            FRAGMENTS_MAX,
        )?;
        result?;
        for _ in 0..count {
            start(requests, &mut meter)?;
        }
        if count == 0 {
            hint::spin_loop();
        }
    }
    Ok(meter.finish()?)
}

fn start(requests: &AeronExclusivePublication, meter: &mut Meter) -> Result<(), Failure> {
    match meter.begin() {
        Some(call) => offer(requests, &content::small(call)),
        None => Ok(()),
    }
}

fn bulks(
    requests: &AeronExclusivePublication,
    replies: &AeronSubscription,
    plan: Plan,
) -> Result<Outcome, Failure> {
    let mut lanes: Vec<_> = (0..plan.in_flight)
        .map(|_| {
            let mut memory = vec![0; BULK_BYTES];
            let bulk = Bulk::fill(&mut memory);
            (bulk, memory)
        })
        .collect();
    let mut meter = Meter::start(plan);
    for (bulk, memory) in &mut lanes {
        start_bulk(requests, &mut meter, bulk, memory)?;
    }
    let mut oldest = 1;
    while meter.in_flight() > 0 {
        let mut result = Ok(());
        // The lanes take turns at calls.
        let lane = (oldest as usize - 1) % plan.in_flight;
        let (bulk, memory) = &mut lanes[lane];
        let end = |reply: &[u8], _| result = meter.end(oldest, bulk.is_reply(reply));
        if replies.poll_fn(end, 1)? == 0 {
            hint::spin_loop();
            continue;
        }
        result?;
        oldest += 1;
        start_bulk(requests, &mut meter, bulk, memory)?;
    }
    Ok(meter.finish()?)
}

fn start_bulk(
    requests: &AeronExclusivePublication,
    meter: &mut Meter,
    bulk: &mut Bulk,
    memory: &mut [u8],
) -> Result<(), Failure> {
    let Some(call) = meter.begin() else { return Ok(()) };
    bulk.stamp(memory, call);
    offer(requests, memory)
}
