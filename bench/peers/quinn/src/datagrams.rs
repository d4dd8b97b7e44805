//! An unreliable datagram per direction and call. Lost datagrams are not sent again: a window with
//! losses fails, because some calls do not end.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use peers_common::{Failure, Meter, Outcome, Plan, Workload, content};
use quinn::Connection;
use tokio::time::timeout;

/// After this time without a reply, a datagram counts as lost.
const SILENCE: Duration = Duration::from_secs(2);

pub(crate) async fn serve(connection: Connection) -> Result<(), Failure> {
    // The loop ends with the connection.
    while let Ok(request) = connection.read_datagram().await {
        connection.send_datagram(request)?;
    }
    Ok(())
}

pub(crate) async fn run(connection: Connection, plan: Plan) -> Result<Outcome, Failure> {
    if plan.workload == Workload::Bulk {
        return Err("a datagram holds no bulk request".into());
    }
    let mut meter = Meter::start(plan);
    let mut calls = HashSet::new();
    for _ in 0..plan.in_flight {
        start(&connection, &mut meter, &mut calls)?;
    }
    while !calls.is_empty() {
        let reply = timeout(SILENCE, connection.read_datagram()).await;
        let reply = reply.map_err(|_| format!("{} datagrams were lost", calls.len()))??;
        let call = content::call_of(&reply).filter(|call| calls.remove(call));
        let call = call.ok_or("a reply to no call")?;
        meter.end(call, content::is_small(call, &reply))?;
        start(&connection, &mut meter, &mut calls)?;
    }
    Ok(meter.finish()?)
}

fn start(
    connection: &Connection,
    meter: &mut Meter,
    calls: &mut HashSet<u64>,
) -> Result<(), Failure> {
    if let Some(call) = meter.begin() {
        calls.insert(call);
        connection.send_datagram(Bytes::copy_from_slice(&content::small(call)))?;
    }
    Ok(())
}
