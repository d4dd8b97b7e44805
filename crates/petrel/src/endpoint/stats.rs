//! The counters of an endpoint, also for callers outside the process.

use std::fmt::Write as _;

use petrel_proto::congestion::CongestionCounters;
use petrel_proto::counters::Counters;
use petrel_proto::limits::PATHS_MAX;
use petrel_proto::path::PathCounts;
use petrel_transport::buf::InUse;
use petrel_transport::{Transport, TransportStats};

use super::context::Local;
use super::remote::ClientCalls;
use super::{CallFailures, SessionEnds};
use crate::control::{ControlPlane, EndpointId};
use crate::region_memory::RegionStats;

/// Returns the counters of all paths; a path that no session has counts zero.
fn path_totals(local: &Local) -> [PathCounts; PATHS_MAX] {
    let mut all = [PathCounts::default(); PATHS_MAX];
    all.iter_mut().zip(local.core.path_totals()).for_each(|(path, total)| *path = total);
    all
}

/// A snapshot of an endpoint's counters.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct EndpointStats {
    /// The endpoint's number.
    pub endpoint: EndpointId,
    /// Sessions open or being opened, in both roles.
    pub sessions: u32,
    /// Links that are up.
    pub links: usize,
    /// Tasks spawned and not ended.
    pub tasks: usize,
    /// Panics of handlers, continuations and tasks after which the event loop went on.
    pub panics: u64,
    /// Buffers in use.
    pub buffers: InUse,
    /// Ended sessions, by the kind of end.
    pub session_ends: SessionEnds,
    /// Failed calls, by the known state of their execution.
    pub call_failures: CallFailures,
    /// Calls made by other threads.
    pub client_calls: ClientCalls,
    /// Counters of the protocol.
    pub protocol: Counters,
    /// Events and actions of congestion control.
    pub congestion: CongestionCounters,
    /// Counters of the transport.
    pub transport: TransportStats,
    /// Counters of the paths of all sessions to servers that have several, by source port; zeros for ports that no
    /// session has.
    pub paths: [PathCounts; PATHS_MAX],
    /// Operations on regions that the endpoint has executed or refused, if it [serves](crate::Endpoint::serve_regions) any.
    pub regions: Option<RegionStats>,
}

impl EndpointStats {
    /// Returns the current counters.
    pub(super) fn of<T, C>(transport: &T, control: &C, local: &Local) -> Self
    where
        T: Transport,
        C: ControlPlane<T::Link>,
    {
        Self {
            endpoint: control.endpoint_id(),
            sessions: local.core.session_count(),
            links: local.sessions.link_count(),
            tasks: local.hub.task_count(),
            panics: local.panics().caught(),
            buffers: local.pool.in_use(),
            session_ends: local.sessions.ends(),
            call_failures: local.remote.failures(),
            client_calls: local.remote.client_calls(local.services.calls_made()),
            protocol: *local.core.counters(),
            congestion: *local.core.congestion_counters(),
            transport: transport.stats(),
            paths: path_totals(local),
            regions: local.regions.as_ref().map(|view| view.stats()),
        }
    }

    /// Returns all counters as one flat JSON object, without line breaks. Paths have counters from their first packet on.
    pub fn to_json(self) -> String {
        let mut json = String::with_capacity(2048);
        let head = [
            ("endpoint", u64::from(self.endpoint.0)),
            ("sessions", u64::from(self.sessions)),
            ("links", self.links as u64),
            ("tasks", self.tasks as u64),
            ("panics_caught", self.panics),
            ("buffers_in_use", self.buffers.count as u64),
            ("buffer_bytes_in_use", self.buffers.bytes as u64),
            ("client_calls_made", self.client_calls.made),
            ("client_calls_not_made", self.client_calls.not_made),
            ("client_calls_under_way", self.client_calls.under_way as u64),
            ("client_calls_waiting", self.client_calls.waiting as u64),
        ];
        json.push('{');
        for (name, value) in head
            .into_iter()
            .chain(self.session_ends.iter())
            .chain(self.call_failures.iter())
            .chain(self.protocol.iter())
            .chain(self.congestion.iter())
            .chain(self.transport.iter())
            .chain(self.regions.iter().flat_map(RegionStats::iter))
        {
            if json.len() > 1 {
                json.push(',');
            }
            // Writing to a string cannot fail.
            let _ = write!(json, "\"{name}\":{value}");
        }
        for (path, counts) in self.paths.iter().enumerate().filter(|(_, path)| path.packets > 0) {
            let PathCounts { packets, marks, losses, .. } = counts;
            let _ = write!(
                json,
                ",\"path_{path}_packets\":{packets},\"path_{path}_marks\":{marks},\"path_{path}_losses\":{losses}"
            );
        }
        json.push('}');
        json
    }
}
