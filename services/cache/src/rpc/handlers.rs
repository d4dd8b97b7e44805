//! An endpoint of a server, which owns a partition.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use petrel::Endpoint;

use super::inbox_task::{Bell, run_batches};
use super::service::{Lookups, serve_partition};
use crate::key::{Hasher, KeyRange};
use crate::net::owner::Owner;
use crate::net::report::Snapshot;
use crate::net::thread::Shared;
use crate::partition::{Partition, PartitionConfig};

/// Interval of the look at the clock: times are whole seconds.
const CLOCK_INTERVAL: Duration = Duration::from_millis(200);

/// The last counters of the endpoints that have ended.
pub(crate) type Report = Arc<Mutex<Snapshot>>;

/// The settings of the endpoints of a server.
#[derive(Clone)]
pub(crate) struct Endpoints {
    pub(crate) partition: PartitionConfig,
    pub(crate) hasher: Hasher,
    pub(crate) shared: Arc<Shared>,
    pub(crate) bells: Arc<[Bell]>,
    pub(crate) report: Report,
}

/// The state of an endpoint. The partition is made when the endpoint has its number.
#[derive(Default)]
pub(crate) struct State(Option<Served>);

struct Served {
    owner: Owner,
    shared: Arc<Shared>,
    report: Report,
}

impl State {
    fn served(&mut self) -> &mut Served {
        self.0.as_mut().expect("an endpoint gets its partition before its first request")
    }

    pub(super) fn owner(&mut self) -> &mut Owner {
        &mut self.served().owner
    }
}

impl Served {
    fn set_time(&mut self) {
        self.owner.partition.set_time(self.shared.second());
    }
}

impl Drop for Served {
    /// Also runs when the endpoint's thread panics.
    fn drop(&mut self) {
        self.shared.ended_endpoints.fetch_add(1, Ordering::SeqCst);
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        report.add(&Snapshot::of(&self.owner.partition));
    }
}

impl Endpoints {
    /// Makes the endpoint's partition, sets the handlers and starts the endpoint's tasks.
    pub(crate) fn set_up(&self, endpoint: &mut Endpoint<State>) {
        let number = usize::from(endpoint.stats().endpoint.0);
        let partition = Partition::new(&self.partition, self.hasher.clone());
        let partition = partition.expect("the server has checked the configuration");
        let owner = Owner { partition, clock: self.shared.clock };
        let (report, shared) = (Arc::clone(&self.report), Arc::clone(&self.shared));
        let mut served = Served { owner, shared, report };
        served.set_time();
        endpoint.state_mut().0 = Some(served);
        let partitions = self.shared.partitions as u16;
        let range = KeyRange::new(self.hasher.clone(), number, partitions);
        serve_partition(endpoint, &range, Lookups::default(), |state| {
            &mut state.served().owner.partition
        });
        let handle = endpoint.handle();
        let clock = handle.clone();
        // The tasks end with the endpoint.
        drop(handle.spawn(async move {
            loop {
                clock.sleep(CLOCK_INTERVAL).await;
                clock.with(|state: &mut State| state.served().set_time());
            }
        }));
        let batches = run_batches(
            handle.clone(),
            Arc::clone(&self.shared),
            number,
            self.bells[number].clone(),
        );
        drop(handle.spawn(batches));
    }
}
