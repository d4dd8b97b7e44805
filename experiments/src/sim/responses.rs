//! The latency of responses of several packets, which a client asks for packet by packet (eRPC §5.1).
//!
//! The packets of a request need no permission. So a request of as many packets with a small answer is the baseline: the time that a
//! response of these packets would take if the server sent all of them at once.

use serde::Serialize;

use super::caller::Load;
use super::cluster::{Cluster, FRAME_BYTES, Place, Settings, tally_of};
use super::loss::one_switch;
use super::{Controller, ExperimentError, Latency, cpu};
use petrel_sim::fabric::HostId;

/// Rate of the links.
const GBIT: u64 = 25;

/// Bytes of a message for each of its packets, which have room for a little more.
const PACKET_BYTES: usize = 1_400;

/// Bytes of the other message.
const SMALL_BYTES: usize = 32;

/// Packets of the messages.
const PACKETS: [usize; 7] = [1, 2, 3, 4, 8, 16, 32];

/// A row of results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ResponsesRow {
    /// Packets of the response.
    pub packets: usize,
    /// Calls of each of the three loads, all answered correctly.
    pub calls: u64,
    /// Latency of a request of these packets.
    pub request_ns: u64,
    /// Latency of a response of these packets, each of which but the first the client asks for.
    pub asked_ns: u64,
    /// The same, with permission in the request.
    pub granted_ns: u64,
}

impl ResponsesRow {
    /// Returns the latency that a response adds to that of a request, as a share.
    pub fn added(&self, response_ns: u64) -> f64 {
        response_ns as f64 / self.request_ns as f64 - 1.0
    }
}

/// Runs the experiment, and passes every complete row to `on_row`.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(
    seed: u64,
    calls: u64,
    mut on_row: impl FnMut(&ResponsesRow),
) -> Result<Vec<ResponsesRow>, ExperimentError> {
    let mut rows = Vec::new();
    for packets in PACKETS {
        let bytes = packets * PACKET_BYTES;
        let p50_ns = |request, response, grants| latency(seed, calls, (request, response), grants);
        let row = ResponsesRow {
            packets,
            calls,
            request_ns: p50_ns(bytes, SMALL_BYTES, false)?,
            asked_ns: p50_ns(SMALL_BYTES, bytes, false)?,
            granted_ns: p50_ns(SMALL_BYTES, bytes, true)?,
        };
        on_row(&row);
        rows.push(row);
    }
    Ok(rows)
}

/// Returns the median latency of calls, one after the other.
fn latency(
    seed: u64,
    calls: u64,
    (request, response): (usize, usize),
    response_grants: bool,
) -> Result<u64, ExperimentError> {
    let controller = Controller::None;
    let settings = Settings::new(seed, controller, GBIT, cpu::of_frames(FRAME_BYTES));
    let settings = Settings { response_grants, ..settings };
    let mut cluster = Cluster::new(&one_switch(GBIT, controller), settings)?;
    let server = Place::new(HostId(1), 0);
    cluster.add(server)?;
    let actor = cluster.add(Place::new(HostId(0), 0))?;
    let load = Load { calls_max: calls, ..Load::one_by_one(request, response as u32) };
    let caller = cluster.add_caller(actor, &[server], load)?;
    cluster.begin()?;
    cluster.begin_measuring();
    cluster.run_until("the calls", |_| Ok(caller.is_done()))?;
    cluster.drain()?;
    Ok(Latency::from(&tally_of([&caller]).latency).p50_ns)
}
