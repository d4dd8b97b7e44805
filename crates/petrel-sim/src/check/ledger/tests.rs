//! Each rule of the ledger, broken.

use petrel::endpoint::EndpointConfig;
use petrel::{Endpoint, MsgBuf};
use petrel_proto::CallError;

use super::super::call::Spec;
use super::*;
use crate::control::{ControlNetwork, SimControl};
use crate::fabric::{FabricHandle, HostId, Stopped, Topology};
use crate::{Rng, SimTransport};

const CLIENT: SimAddr = SimAddr::new(HostId(0), 1);
const SERVER: SimAddr = SimAddr::new(HostId(1), 1);
const SESSION: SessionId = SessionId { index: 1, generation: 0 };

/// A ledger with one call, and an endpoint that allocates buffers.
struct Fixture {
    ledger: Ledger,
    endpoint: Endpoint<(), SimTransport, SimControl>,
}

impl Fixture {
    fn new(method: Method) -> Self {
        let topology = Topology::pair(Default::default(), Default::default());
        let fabric = FabricHandle::new(&topology, Default::default(), 1).unwrap();
        let network = ControlNetwork::new(&fabric, Default::default(), Rng::new(1));
        network.start_process(CLIENT.host);
        let control = network.attach(CLIENT, petrel::endpoint::EndpointId(0), 1_472, Rng::new(2));
        let transport = SimTransport::bind(&fabric, CLIENT, Default::default()).unwrap();
        let endpoint = Endpoint::new(transport, control, &EndpointConfig::default()).unwrap();
        let (now_ns, turn_ns, message_bytes_max) = (500, 500, 1 << 20);
        let mut ledger = Ledger { now_ns, turn_ns, message_bytes_max, ..Ledger::default() };
        let spec = Spec { method, request_len: 100, response_len: 100, slack: 0, delay_ns: 0 };
        let call = Call {
            spec,
            client: 0,
            client_at: CLIENT,
            server: SERVER,
            session: SESSION,
            room: 100,
            parent: None,
            issued_ns: 400,
            ended_ns: None,
            left_ns: None,
            deadline_ns: None,
            is_ordered: false,
            is_cancelled: false,
            seen_ns: None,
            watch: Watch::No,
            executions: 0,
            seed: None,
            end: End::Pending,
        };
        assert_eq!(ledger.issue(call), 0);
        Self { ledger, endpoint }
    }

    /// Makes a call with a deadline.
    fn until(deadline_ns: u64) -> Self {
        let mut fixture = Self::new(Method::Echo);
        fixture.ledger.calls[0].deadline_ns = Some(deadline_ns);
        fixture.ledger.late_ns_max = 100;
        fixture
    }

    fn request(&self) -> MsgBuf {
        let mut request = self.endpoint.alloc(100).unwrap();
        request.set_len(100);
        pattern::fill_request(0, &mut request);
        request
    }

    fn execute(&mut self) -> Option<u32> {
        let request = self.request();
        self.ledger.execute(SERVER, Method::Echo, &request, None)
    }

    fn end(&mut self, outcome: Result<(), petrel::Error>, response: &[u8]) {
        let reply = Reply {
            session: SESSION,
            outcome,
            request: self.request(),
            response: self.endpoint.alloc_message(response).unwrap(),
        };
        self.ledger.end(0, &reply);
    }

    fn succeed(&mut self) {
        let response = self.request().to_vec();
        self.end(Ok(()), &response);
    }

    fn fail(&mut self, status: Status, execution: Execution) {
        self.end(Err(petrel_proto::CallFailure::new(status, "", execution).into()), b"");
    }

    #[track_caller]
    fn assert_broken(&self, what: &str) {
        let broken = self.ledger.violation.as_deref().expect("a broken rule");
        assert!(broken.contains(what), "{broken}");
    }
}

#[test]
fn call__that_is_executed_once_and_answered_is_right() {
    let mut fixture = Fixture::new(Method::Echo);
    assert_eq!(fixture.execute(), Some(0));
    fixture.succeed();
    fixture.ledger.close();
    assert_eq!(fixture.ledger.violation, None);
}

#[test]
fn execute__twice() {
    let mut fixture = Fixture::new(Method::Echo);
    fixture.execute();
    fixture.succeed();
    fixture.execute();
    fixture.assert_broken("executed more than once");
}

#[test]
fn execute__other_bytes_server_or_method() {
    let mut fixture = Fixture::new(Method::Echo);
    let mut request = fixture.request();
    request[50] ^= 1;
    fixture.ledger.execute(SERVER, Method::Echo, &request, None);
    fixture.assert_broken("other bytes");
    let mut fixture = Fixture::new(Method::Echo);
    let request = fixture.request();
    fixture.ledger.execute(CLIENT, Method::Echo, &request, None);
    fixture.assert_broken("wrong server");
    let mut fixture = Fixture::new(Method::Transform);
    fixture.execute();
    fixture.assert_broken("wrong server or method");
    let mut fixture = Fixture::new(Method::Echo);
    fixture.ledger.execute(SERVER, Method::Echo, &[9; 100], None);
    fixture.assert_broken("nobody sent");
}

#[test]
fn execute__after_not_sent() {
    let mut fixture = Fixture::new(Method::Echo);
    fixture.ledger.fault_windows.add([SERVER.host], 450, 10);
    fixture.fail(Status::Unavailable, Execution::NotSent);
    assert_eq!(fixture.ledger.violation, None);
    fixture.execute();
    fixture.assert_broken("said that it would not be");
    let mut fixture = Fixture::new(Method::Echo);
    fixture.ledger.has_little_memory = true;
    fixture.fail(Status::ResourceExhausted, Execution::Refused);
    assert_eq!(fixture.ledger.violation, None);
    fixture.execute();
    fixture.assert_broken("said that it would not be");
}

#[test]
fn end__twice_or_never() {
    let mut fixture = Fixture::new(Method::Echo);
    fixture.execute();
    fixture.succeed();
    fixture.succeed();
    fixture.assert_broken("ended twice");
    let mut fixture = Fixture::new(Method::Echo);
    fixture.ledger.close();
    fixture.assert_broken("never ended");
    let mut fixture = Fixture::new(Method::Echo);
    fixture.ledger.record_crash(0);
    fixture.ledger.close();
    assert_eq!(fixture.ledger.violation, None, "its client died");
}

#[test]
fn end__well_without_execution_or_with_a_wrong_answer() {
    let mut fixture = Fixture::new(Method::Echo);
    fixture.succeed();
    fixture.assert_broken("this many executions");
    let mut fixture = Fixture::new(Method::Echo);
    fixture.execute();
    fixture.end(Ok(()), &[0; 100]);
    fixture.assert_broken("wrong answer");
}

#[test]
fn end__badly_needs_a_reason() {
    let mut fixture = Fixture::new(Method::Echo);
    fixture.fail(Status::Unavailable, Execution::MayHaveExecuted);
    fixture.assert_broken("without a reason");
    let mut fixture = Fixture::new(Method::Echo);
    fixture.fail(Status::Cancelled, Execution::MayHaveExecuted);
    fixture.assert_broken("without a reason");
    let mut fixture = Fixture::new(Method::Echo);
    fixture.ledger.close_here(0, SESSION);
    fixture.fail(Status::Cancelled, Execution::MayHaveExecuted);
    assert_eq!(fixture.ledger.violation, None);
    let mut fixture = Fixture::new(Method::Echo);
    fixture.execute();
    fixture.fail(Status::Internal, Execution::Answered);
    fixture.assert_broken("wrong error");
}

#[test]
fn deadline__is_kept_and_on_the_wire() {
    let fails_at = |now_ns, execution| {
        let mut fixture = Fixture::until(2_000);
        fixture.ledger.now_ns = now_ns;
        fixture.fail(Status::DeadlineExceeded, execution);
        fixture
    };
    for (now_ns, execution) in [
        (2_000, Execution::NotSent),
        (2_100, Execution::MayHaveExecuted),
        (1_000, Execution::Refused),
    ] {
        assert_eq!(fails_at(now_ns, execution).ledger.violation, None);
    }
    fails_at(1_999, Execution::MayHaveExecuted).assert_broken("before its deadline");
    fails_at(999, Execution::Refused).assert_broken("before its deadline");
    fails_at(2_101, Execution::NotSent).assert_broken("long after its deadline");
    let mut fixture = Fixture::new(Method::Echo);
    fixture.fail(Status::DeadlineExceeded, Execution::MayHaveExecuted);
    fixture.assert_broken("has no deadline");
    for (seen_ns, is_right) in [(None, false), (Some(999), false), (Some(1_000), true)] {
        assert_eq!(is_deadline_right(&mut Fixture::until(2_000), seen_ns), is_right, "{seen_ns:?}");
    }
}

fn is_deadline_right(fixture: &mut Fixture, seen_ns: Option<u64>) -> bool {
    let request = fixture.request();
    fixture.ledger.execute(SERVER, Method::Echo, &request, seen_ns);
    fixture.ledger.violation.is_none()
}

#[test]
fn deadline__grows_by_the_way_and_shrinks_by_a_stop_of_the_server() {
    // In flight for 100 ns before the turn began.
    for (seen_ns, is_right) in [(2_100, true), (2_101, false)] {
        let mut fixture = Fixture::until(2_000);
        fixture.ledger.calls[0].left_ns = Some(450);
        fixture.ledger.turn_ns = 550;
        fixture.ledger.now_ns = 600;
        assert_eq!(is_deadline_right(&mut fixture, Some(seen_ns)), is_right, "{seen_ns}");
    }
    for (host, seen_ns, is_right) in
        [(SERVER.host, 800, true), (SERVER.host, 799, false), (CLIENT.host, 800, false)]
    {
        let mut fixture = Fixture::until(2_000);
        fixture.ledger.fault_windows.add_stop(Stopped { host, from_ns: 300, for_ns: 200 });
        assert_eq!(is_deadline_right(&mut fixture, Some(seen_ns)), is_right, "{seen_ns}");
    }
    // The deadline has passed.
    let mut fixture = Fixture::until(2_000);
    (fixture.ledger.now_ns, fixture.ledger.turn_ns) = (2_000, 2_000);
    assert!(!is_deadline_right(&mut fixture, Some(2_000)));
}

#[test]
fn deadline__is_overrun_by_no_more_than_a_stop_of_the_client() {
    for (host, now_ns, is_right) in
        [(CLIENT.host, 2_150, true), (CLIENT.host, 2_151, false), (SERVER.host, 2_150, false)]
    {
        let mut fixture = Fixture::until(2_000);
        fixture.ledger.fault_windows.add_stop(Stopped { host, from_ns: 1_900, for_ns: 150 });
        fixture.ledger.now_ns = now_ns;
        fixture.fail(Status::DeadlineExceeded, Execution::MayHaveExecuted);
        assert_eq!(fixture.ledger.violation.is_none(), is_right, "{now_ns}");
    }
}

#[test]
fn deadline__nothing_succeeds_after_it() {
    for (now_ns, is_right) in [(1_999, true), (2_000, false)] {
        let mut fixture = Fixture::until(2_000);
        assert!(is_deadline_right(&mut fixture, Some(1_500)));
        fixture.ledger.now_ns = now_ns;
        fixture.succeed();
        assert_eq!(fixture.ledger.violation.is_none(), is_right, "{now_ns}");
    }
}

#[test]
fn leave__tells_what_is_left_by_a_clock_that_was_read_for_it() {
    let clock = |read_ns| TurnClock { first_ns: 0, last_ns: 9_000, read_ns };
    let notified = |deadline_ns, wire_us, read_ns| {
        check_left(deadline_ns, wire_us, clock(read_ns), &mut None).is_ok()
    };
    assert!(
        notified(Some(7_999), Some(3), Some(4_000)) && notified(Some(3_000), Some(0), Some(4_000))
    );
    assert!(
        !notified(Some(7_999), Some(4), Some(4_000))
            && !notified(Some(7_999), Some(2), Some(4_000))
    );
    assert!(!notified(Some(7_999), Some(3), None) && !notified(Some(7_999), None, None));
    assert!(notified(None, None, None) && !notified(None, Some(3), Some(4_000)));
    let mut first_ns = None;
    for read_ns in [5_000, 6_000] {
        check_left(None, None, clock(Some(read_ns)), &mut first_ns).unwrap();
    }
    assert_eq!(first_ns, Some(5_000));
}

#[test]
fn inherit__what_the_handler_saw() {
    for (inherited_ns, is_right) in [(Some(2_050), true), (Some(2_051), false), (None, false)] {
        let mut fixture = Fixture::until(2_000);
        let request = fixture.request();
        fixture.ledger.execute(SERVER, Method::Echo, &request, Some(2_050));
        fixture.ledger.check_inherited(Some(0), inherited_ns);
        assert_eq!(fixture.ledger.violation.is_none(), is_right, "{inherited_ns:?}");
    }
    let mut fixture = Fixture::new(Method::Echo);
    fixture.ledger.check_inherited(None, Some(3_000));
    fixture.assert_broken("is inherited");
}

#[test]
fn cancel__ends_a_call_that_is_there() {
    let mut fixture = Fixture::new(Method::Echo);
    fixture.ledger.cancel(0, true);
    fixture.fail(Status::Cancelled, Execution::MayHaveExecuted);
    fixture.ledger.cancel(0, false);
    assert_eq!(fixture.ledger.violation, None);
    let mut fixture = Fixture::new(Method::Echo);
    fixture.ledger.cancel(0, true);
    fixture.execute();
    fixture.succeed();
    fixture.assert_broken("ended otherwise");
    let mut fixture = Fixture::new(Method::Echo);
    fixture.ledger.cancel(0, false);
    fixture.assert_broken("was cancelled, and was there");
}

#[test]
fn watch__is_answered_or_notified_once() {
    let watched = || {
        let mut fixture = Fixture::new(Method::Echo);
        fixture.execute();
        fixture.ledger.watch(0, 9);
        fixture.succeed();
        fixture
    };
    let mut fixture = watched();
    fixture.ledger.close();
    fixture.assert_broken("neither answered nor notified");
    let settled: [fn(&mut Ledger); 3] =
        [|ledger| ledger.notify(0), |ledger| ledger.answer(0), |ledger| ledger.record_crash(9)];
    for settle in settled {
        let mut fixture = watched();
        settle(&mut fixture.ledger);
        fixture.ledger.close();
        assert_eq!(fixture.ledger.violation, None);
        fixture.ledger.notify(0);
        fixture.assert_broken("without need");
    }
}

#[test]
fn reject__needs_a_reason() {
    let mut fixture = Fixture::new(Method::Echo);
    let closed = CallError::SessionClosed;
    fixture.ledger.reject(0, &Error::new(closed.status(), closed.to_string()));
    fixture.assert_broken("rejected without a reason");
}

#[test]
fn tiny__is_executed_no_more_often_than_called() {
    let mut ledger = Ledger::default();
    ledger.execute(SERVER, Method::TinyEcho, b"", None);
    assert!(ledger.violation.is_some());
}

#[test]
fn held_back_ns__is_for_the_packets_of_the_session_meanwhile_and_of_nested_calls() {
    let mut ledger = Fixture::new(Method::Echo).ledger;
    let first = ledger.calls[0].clone();
    let mut add = |client, index, (issued_ns, ended_ns), parent, end| {
        let session = SessionId { index, ..SESSION };
        let spec = Spec { request_len: 2_500, response_len: 1_000, ..first.spec };
        let call =
            Call { spec, client, session, issued_ns, ended_ns, parent, end, ..first.clone() };
        ledger.issue(call)
    };
    // Call 0 is outstanding from 400 on. The session has further calls, which begin before the end of call
    // 0 and end after its beginning.
    let waits = add(0, 2, (500, Some(900)), None, End::Succeeded);
    add(0, 2, (400, Some(500)), None, End::Succeeded);
    add(0, 2, (900, None), None, End::Pending);
    for (client, index, times, end) in [
        (0, 2, (300, Some(499)), End::Succeeded),
        (0, 2, (901, Some(950)), End::Succeeded),
        (0, 2, (600, None), End::Rejected),
        (0, 3, (600, Some(700)), End::Succeeded),
        (1, 2, (600, Some(700)), End::Succeeded),
    ] {
        add(client, index, times, None, end);
    }
    let gap = |call: &Call| Gap {
        packet_bytes: 1_000,
        gap_ns: if call.client == 0 { 10 } else { 1_000 },
    };
    // Three calls with three packets each: the response packet needs no pull.
    assert_eq!(ledger.held_back_ns(waits, &gap), 9 * 10);
    let mut nested = first.clone();
    (nested.client, nested.parent) = (7, Some(waits));
    (nested.issued_ns, nested.ended_ns) = (600, Some(800));
    ledger.issue(nested);
    assert_eq!(ledger.held_back_ns(waits, &gap), 9 * 10 + 1_000);
    assert_eq!(ledger.waits().max_by_key(|wait| wait.1), Some((waits, 400)));
}

/// An earlier call of another session, one that has ended, and one that may have been refused hold no call back.
#[test]
fn execute__of_an_ordered_call_before_an_earlier_one() {
    let run = |change: fn(&mut Ledger)| {
        let mut fixture = Fixture::new(Method::Echo);
        let second = Call { is_ordered: true, ..fixture.ledger.calls[0].clone() };
        fixture.ledger.issue(second);
        change(&mut fixture.ledger);
        let mut request = fixture.request();
        pattern::fill_request(1, &mut request);
        fixture.ledger.execute(SERVER, Method::Echo, &request, None);
        fixture
    };
    run(|_| {}).assert_broken("is ordered, and ran before an earlier one");
    let harmless: [fn(&mut Ledger); 5] = [
        |ledger| ledger.calls[1].is_ordered = false,
        |ledger| ledger.calls[0].executions = 1,
        |ledger| ledger.calls[0].end = End::Succeeded,
        |ledger| ledger.calls[0].is_cancelled = true,
        |ledger| ledger.calls[0].client = 7,
    ];
    for change in harmless {
        assert_eq!(run(change).ledger.violation, None);
    }
}
