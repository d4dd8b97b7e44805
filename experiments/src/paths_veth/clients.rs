//! Several clients on a thread, with separate endpoints and sessions.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use petrel_command::failure::Failure;
use petrel_command::methods;

use super::network::{HostEnd, LINKS};
use super::{Column, PathsPlan, mbit};
use petrel_bench::measure::ends::{ClientEnd, Side};
use petrel_bench::measure::library::{Answerer, Caller, EndConfig};
use petrel_bench::measure::load::Load;
use petrel_bench::measure::test_bed::TestBed;
use petrel_bench::measure::window::{Traffic, Window};

/// Goodput of each client in the last window, in Mbit/s.
pub(super) type ByClient = Rc<RefCell<Vec<f64>>>;

/// The clients, polled in turn.
pub(super) struct Clients {
    callers: Vec<Caller<Load>>,
    by_client: ByClient,
}

impl Clients {
    /// Creates as many clients as there are links, and a server for all.
    pub(super) fn four(
        plan: &PathsPlan,
        test_bed: &TestBed,
        column: Column,
    ) -> Result<(Box<dyn Side>, ByClient), Failure> {
        let (measurement, shape) = (plan.measurement(), plan.shape(column));
        let server = HostEnd::Server.address().into();
        let config =
            EndConfig { adjust: column.adjust(), ..EndConfig::new(measurement.transport, server) };
        let (sender, receiver) = mpsc::channel();
        let make_server = move || {
            let answerer = Answerer::start((server, 0).into(), &config, methods::register)?;
            // The result is received in any case.
            let _ = sender.send(answerer.address());
            Ok(answerer)
        };
        let by_client = ByClient::default();
        let of_clients = Rc::clone(&by_client);
        let side = test_bed.create_ends(make_server, |meanwhile| {
            let address = receiver.recv().map_err(Failure::because)?;
            let caller = |_| measurement.caller((address, 0), &shape, meanwhile);
            let callers = (0..LINKS).map(caller).collect::<Result<_, _>>()?;
            Ok(Self { callers, by_client: of_clients })
        })?;
        Ok((side, by_client))
    }
}

impl ClientEnd for Clients {
    fn begin(&mut self, end_ns: u64) {
        self.callers.iter_mut().for_each(|caller| caller.begin(end_ns));
    }

    fn poll_once(&mut self) {
        self.callers.iter_mut().for_each(Caller::poll_once);
    }

    fn is_over(&self) -> bool {
        self.callers.iter().all(Caller::is_over)
    }

    fn give_up(&mut self, timeout: Duration) {
        self.callers.iter_mut().for_each(|caller| caller.give_up(timeout));
    }

    /// Returns the sums, over the longest time of any client.
    fn finish(&mut self) -> Window {
        let mut sum = Window::new(None);
        let mut rates = self.by_client.borrow_mut();
        rates.clear();
        for caller in &mut self.callers {
            let window = caller.finish();
            rates.push(mbit(&window));
            sum.calls += window.calls;
            sum.checked += window.checked;
            sum.mismatched += window.mismatched;
            sum.bytes += window.bytes;
            sum.elapsed_ns = sum.elapsed_ns.max(window.elapsed_ns);
            sum.failures.extend(window.failures);
        }
        sum
    }

    fn traffic(&self) -> Traffic {
        self.callers.iter().fold(Traffic::default(), |sum, caller| sum + caller.traffic())
    }
}
