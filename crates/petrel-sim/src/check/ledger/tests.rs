//! Each rule of the ledger, broken.

use petrel::{Endpoint, EndpointConfig, MsgBuf};

use super::super::call::Spec;
use super::*;
use crate::control::{ControlNetwork, SimControl};
use crate::fabric::{FabricHandle, HostId, Topology};
use crate::{Rng, SimTransport};

const CLIENT: SimAddr = SimAddr::new(HostId(0), 1);
const SERVER: SimAddr = SimAddr::new(HostId(1), 1);
const SESSION: SessionId = SessionId { index: 1, generation: 0 };

/// A ledger with one call, and somewhere to get buffers from.
struct Desk {
    ledger: Ledger,
    endpoint: Endpoint<SimTransport, SimControl>,
}

impl Desk {
    fn new(method: Method) -> Self {
        let topology = Topology::pair(Default::default(), Default::default());
        let fabric = FabricHandle::new(&topology, Default::default(), 1).unwrap();
        let network = ControlNetwork::new(&fabric, Default::default(), Rng::new(1));
        network.start_process(CLIENT.host);
        let control = network.attach(CLIENT, petrel::control::EndpointId(0), 1_472, Rng::new(2));
        let transport = SimTransport::bind(&fabric, CLIENT, Default::default()).unwrap();
        let endpoint = Endpoint::new(transport, control, &EndpointConfig::default()).unwrap();
        let mut ledger = Ledger { now_ns: 500, message_bytes_max: 1 << 20, ..Ledger::default() };
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
            executions: 0,
            seed: None,
            end: End::Pending,
        };
        assert_eq!(ledger.issue(call), 0);
        Self { ledger, endpoint }
    }

    fn request(&self) -> MsgBuf {
        let mut request = self.endpoint.alloc(100).unwrap();
        request.set_len(100);
        pattern::fill_request(0, &mut request);
        request
    }

    fn execute(&mut self) -> Option<u32> {
        let request = self.request();
        self.ledger.execute(SERVER, Method::Echo, &request)
    }

    fn end(&mut self, outcome: Result<(), CallFailure>, response: &[u8]) {
        let reply = Reply {
            session: SESSION,
            outcome: outcome.map_err(Box::new),
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
        self.end(Err(CallFailure { status, message: String::new(), execution }), b"");
    }

    #[track_caller]
    fn assert_broken(&self, what: &str) {
        let broken = self.ledger.violation.as_deref().expect("a broken rule");
        assert!(broken.contains(what), "{broken}");
    }
}

#[test]
fn call__that_is_executed_once_and_answered_is_right() {
    let mut desk = Desk::new(Method::Echo);
    assert_eq!(desk.execute(), Some(0));
    desk.succeed();
    desk.ledger.close();
    assert_eq!(desk.ledger.violation, None);
}

#[test]
fn execute__twice() {
    let mut desk = Desk::new(Method::Echo);
    desk.execute();
    desk.succeed();
    desk.execute();
    desk.assert_broken("executed more than once");
}

#[test]
fn execute__other_bytes_server_or_method() {
    let mut desk = Desk::new(Method::Echo);
    let mut request = desk.request();
    request[50] ^= 1;
    desk.ledger.execute(SERVER, Method::Echo, &request);
    desk.assert_broken("other bytes");
    let mut desk = Desk::new(Method::Echo);
    let request = desk.request();
    desk.ledger.execute(CLIENT, Method::Echo, &request);
    desk.assert_broken("wrong server");
    let mut desk = Desk::new(Method::Transform);
    desk.execute();
    desk.assert_broken("wrong server or method");
    let mut desk = Desk::new(Method::Echo);
    desk.ledger.execute(SERVER, Method::Echo, &[9; 100]);
    desk.assert_broken("nobody sent");
}

#[test]
fn execute__after_not_sent() {
    let mut desk = Desk::new(Method::Echo);
    desk.ledger.troubles.add([SERVER.host], 450, 10);
    desk.fail(Status::Unavailable, Execution::NotSent);
    assert_eq!(desk.ledger.violation, None);
    desk.execute();
    desk.assert_broken("said not to be sent");
}

#[test]
fn end__twice_or_never() {
    let mut desk = Desk::new(Method::Echo);
    desk.execute();
    desk.succeed();
    desk.succeed();
    desk.assert_broken("ended twice");
    let mut desk = Desk::new(Method::Echo);
    desk.ledger.close();
    desk.assert_broken("never ended");
    let mut desk = Desk::new(Method::Echo);
    desk.ledger.bury(0);
    desk.ledger.close();
    assert_eq!(desk.ledger.violation, None, "its client died");
}

#[test]
fn end__well_without_execution_or_with_a_wrong_answer() {
    let mut desk = Desk::new(Method::Echo);
    desk.succeed();
    desk.assert_broken("this many executions");
    let mut desk = Desk::new(Method::Echo);
    desk.execute();
    desk.end(Ok(()), &[0; 100]);
    desk.assert_broken("wrong answer");
}

#[test]
fn end__badly_needs_a_reason() {
    let mut desk = Desk::new(Method::Echo);
    desk.fail(Status::Unavailable, Execution::MayHaveExecuted);
    desk.assert_broken("without a reason");
    let mut desk = Desk::new(Method::Echo);
    desk.fail(Status::Cancelled, Execution::MayHaveExecuted);
    desk.assert_broken("without a reason");
    let mut desk = Desk::new(Method::Echo);
    desk.ledger.close_here(0, SESSION);
    desk.fail(Status::Cancelled, Execution::MayHaveExecuted);
    assert_eq!(desk.ledger.violation, None);
    let mut desk = Desk::new(Method::Echo);
    desk.execute();
    desk.fail(Status::Internal, Execution::Answered);
    desk.assert_broken("wrong error");
}

#[test]
fn reject__needs_a_reason() {
    let mut desk = Desk::new(Method::Echo);
    desk.ledger.reject(0, &CallError::SessionClosed.into());
    desk.assert_broken("rejected without a reason");
}

#[test]
fn tiny__is_executed_no_more_often_than_called() {
    let mut ledger = Ledger::default();
    ledger.execute(SERVER, Method::TinyEcho, b"");
    assert!(ledger.violation.is_some());
}
