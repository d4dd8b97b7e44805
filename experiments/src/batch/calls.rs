//! The calls of a client: a closed loop per call in flight, every answer checked.

use std::mem;
use std::sync::Arc;

use petrel::endpoint::SessionId;
use petrel::{Context, MsgBuf, Reply};
use petrel_batch_bench::served::{Service, Workload};
use petrel_command::failure::Failure;
use petrel_transport::clock;

/// The method of lookups and echoes.
pub(super) const LOOK_UP: u16 = 1;

/// The length of an answer: a number.
pub(super) const ANSWER_BYTES: usize = 4;

/// The outcome of the calls of a window.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    pub(super) right: u64,
    pub(super) wrong: u64,
    pub(super) latencies_ns: Vec<u64>,
    pub(super) first_failure: Option<String>,
}

/// The calls of a client's endpoint.
pub(super) struct Calls<S: Service> {
    workload: Arc<Workload<S>>,
    is_echo: bool,
    places: Vec<Place>,
    /// The next request of the workload.
    next: usize,
    active: usize,
    is_stopped: bool,
    counts: Counts,
}

/// The place of a call in flight.
struct Place {
    session: SessionId,
    /// The number of the request in the workload.
    request: usize,
    began_ns: u64,
    /// The two buffers, while no call is in flight.
    buffers: Option<(MsgBuf, MsgBuf)>,
}

impl<S: Service> Calls<S> {
    pub(super) fn new(workload: Arc<Workload<S>>, is_echo: bool) -> Self {
        Self {
            workload,
            is_echo,
            places: Vec::new(),
            next: 0,
            active: 0,
            is_stopped: true,
            counts: Counts::default(),
        }
    }

    /// Sets the sessions, of which adjacent calls use different ones.
    pub(super) fn set_sessions(
        &mut self,
        cx: &Context<'_, Self>,
        sessions: &[SessionId],
        in_flight: usize,
    ) -> Result<(), Failure> {
        for session in sessions.iter().cycle().take(in_flight) {
            let request = cx.alloc(size_of::<S::Message>()).map_err(Failure::because)?;
            let response = cx.alloc(ANSWER_BYTES).map_err(Failure::because)?;
            let buffers = Some((request, response));
            self.places.push(Place { session: *session, request: 0, began_ns: 0, buffers });
        }
        Ok(())
    }

    /// Starts all calls; each end starts another call until [`Calls::stop`].
    pub(super) fn begin(&mut self, cx: &mut Context<'_, Self>) {
        self.is_stopped = false;
        for index in 0..self.places.len() {
            self.start(cx, index);
        }
    }

    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
    }

    pub(super) fn active(&self) -> usize {
        self.active
    }

    /// The ended calls of the window.
    pub(super) fn ended(&self) -> u64 {
        self.counts.right + self.counts.wrong
    }

    pub(super) fn take_counts(&mut self) -> Counts {
        mem::take(&mut self.counts)
    }

    #[inline]
    fn start(&mut self, cx: &mut Context<'_, Self>, index: usize) {
        let place = &mut self.places[index];
        let Some((mut request, response)) = place.buffers.take() else { return };
        place.request = self.next;
        place.began_ns = clock::now_ns();
        self.next = (self.next + 1) % self.workload.keys.len();
        request.set_message(S::message(self.workload.keys[place.request]).as_ref());
        match cx
            .call(place.session, LOOK_UP, request)
            .into_buffer(response)
            .then(move |calls, cx, reply| calls.on_reply(cx, reply, index))
        {
            Ok(()) => self.active += 1,
            Err(rejected) => {
                place.buffers = rejected.request.zip(rejected.response);
                self.fail(rejected.error.to_string());
            }
        }
    }

    #[inline]
    fn on_reply(&mut self, cx: &mut Context<'_, Self>, reply: Reply, index: usize) {
        self.active -= 1;
        self.counts.latencies_ns.push(clock::now_ns() - self.places[index].began_ns);
        match &reply.outcome {
            Ok(()) if self.is_right(self.places[index].request, &reply.response) => {
                self.counts.right += 1;
            }
            Ok(()) => self.counts.wrong += 1,
            Err(failure) => self.fail(failure.to_string()),
        }
        self.places[index].buffers = Some((reply.request, reply.response));
        if !self.is_stopped {
            self.start(cx, index);
        }
    }

    #[inline]
    fn is_right(&self, request: usize, answer: &[u8]) -> bool {
        match self.is_echo {
            true => answer == first_word(S::message(self.workload.keys[request]).as_ref()),
            false => answer == self.workload.answers[request].to_le_bytes(),
        }
    }

    /// A single failure spoils the measurement, so no further call starts.
    #[cold]
    fn fail(&mut self, text: String) {
        self.counts.first_failure.get_or_insert(text);
        self.is_stopped = true;
    }
}

/// Returns the answer of an echo.
#[inline]
pub(super) fn first_word(message: &[u8]) -> [u8; ANSWER_BYTES] {
    message.first_chunk().copied().unwrap_or_default()
}
