//! One call to many peers, over the real transports.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use crate::common::{ECHO, Server, client, hold, keep_with, over, pattern};
use petrel::client::wait;
use petrel::endpoint::{CallOptions, SessionId, SharedMsg};
use petrel::group::{
    ClientGroup, Group, GroupCall, GroupFailure, GroupReply, Late, MemberOutcome, Need,
};
use petrel::workers::WorkerRequest;
use petrel::{Client, Endpoint, Execution, Status};

/// Fails.
const FAIL: u16 = 2;

fn servers(count: usize) -> Vec<Server> {
    let start = |_| {
        Server::start(over(true, true), "127.0.0.1:0", |endpoint| {
            endpoint.on(FAIL, |_, cx, request| request.fail(cx, Status::Aborted, "as asked"));
        })
    };
    (0..count).map(start).collect()
}

pub(super) fn connect(client: &mut Endpoint, servers: &[Server]) -> Vec<SessionId> {
    servers.iter().map(|server| client.connect_wait(server.address).unwrap()).collect()
}

fn to(method: u16, need: Need) -> GroupCall {
    GroupCall { response_bytes_max: 1 << 20, ..GroupCall::new(method, need) }
}

/// Makes a call to the group and runs the loop until it has ended.
fn call(client: &mut Endpoint, group: &Group, bytes: &[u8], call: GroupCall) -> GroupReply {
    let message = SharedMsg::from(client.alloc_message(bytes).unwrap());
    call_with(client, group, &message, call)
}

/// The same with a message that the caller keeps.
pub(super) fn call_with(
    client: &mut Endpoint,
    group: &Group,
    message: &SharedMsg,
    call: GroupCall,
) -> GroupReply {
    let ended = Rc::new(RefCell::new(None));
    let end = Rc::clone(&ended);
    let keep =
        move |_: &mut (), _: &mut petrel::Context<'_>, reply| *end.borrow_mut() = Some(reply);
    // Sessions of members that are gone may have ended already.
    group.call(&mut client.context(), message, call, keep)?;
    client.run_until(|_, _| ended.borrow().is_some());
    ended.take().unwrap()
}

fn failed(reply: GroupReply) -> GroupFailure<petrel::MsgBuf> {
    reply.expect_err("it cannot succeed")
}

#[test]
fn all__have_the_same_bytes_and_answer() {
    let servers = servers(3);
    let mut client = client(over(true, true));
    let sessions = connect(&mut client, &servers);
    let group = Group::new(sessions.clone()).unwrap();
    for len in [0, 100, 5_000, 1 << 20] {
        let bytes = pattern(len, len as u64);
        let members = call(&mut client, &group, &bytes, to(ECHO, Need::All)).unwrap();
        for (member, session) in members.iter().zip(&sessions) {
            assert_eq!(member.id, *session);
            assert!(member.outcome.answer().is_some_and(|answer| answer[..] == bytes[..]));
        }
        drop(members);
        assert_eq!(client.buffers_in_use().count, 0);
    }
}

#[test]
fn quorum__survives_a_dead_replica_that_all_does_not() {
    let mut servers = servers(3);
    let mut client = client(over(true, false));
    let sessions = connect(&mut client, &servers);
    let group = Group::new(sessions).unwrap();
    servers[1].end();
    let bytes = pattern(4_000, 4);
    let members = call(&mut client, &group, &bytes, to(ECHO, Need::Quorum(2))).unwrap();
    let answers: Vec<bool> =
        members.iter().map(|member| member.outcome.answer().is_some()).collect();
    assert_eq!(answers, [true, false, true]);

    let failure = failed(call(&mut client, &group, &bytes, to(ECHO, Need::All)));
    let (place, why) = failure.failures().next().expect("somebody failed");
    assert_eq!(
        (place, why.status, failure.status()),
        (1, Status::Unavailable, Status::Unavailable)
    );
    assert!(failure.to_string().contains("member 1: UNAVAILABLE"), "{failure}");
}

#[test]
fn any__is_the_first_answer() {
    let servers = servers(2);
    let mut client = client(over(true, true));
    let mut sessions = connect(&mut client, &servers);
    // Its calls fail at once, unsent.
    client.close(sessions[0]);
    let dead = sessions[0];
    sessions.push(connect(&mut client, &servers[..1])[0]);
    let group = Group::new(sessions).unwrap();
    let members = call(&mut client, &group, b"hello", to(ECHO, Need::Any)).unwrap();
    let unsent = members[0].outcome.failure().expect("its session is closed");
    assert_eq!((members[0].id, unsent.execution), (dead, Execution::NotSent));
    assert_eq!(members.iter().filter(|member| member.outcome.answer().is_some()).count(), 1);
    assert!(members.iter().any(|member| matches!(member.outcome, MemberOutcome::Pending)));
}

#[test]
fn failures__end_the_call_when_the_rest_is_not_enough() {
    let servers = servers(3);
    let mut client = client(over(true, true));
    let group = Group::new(connect(&mut client, &servers)).unwrap();
    let failure = failed(call(&mut client, &group, b"?", to(FAIL, Need::Quorum(2))));
    assert_eq!((failure.needed, failure.status()), (2, Status::Aborted));
    assert_eq!(failure.failures().count(), 2, "the third cannot change anything");
    assert!(failure.to_string().contains("as asked"), "{failure}");
}

#[test]
fn late_answers__are_dropped() {
    let servers = servers(3);
    let mut client = client(over(true, true));
    let sessions = connect(&mut client, &servers);
    let group = Group::new(sessions.clone()).unwrap();
    call(&mut client, &group, &pattern(9_000, 1), to(ECHO, Need::Any)).unwrap();
    client.run_until(|_, cx| sessions.iter().all(|&session| cx.pending_calls(session) == 0));
    assert_eq!(client.buffers_in_use().count, 0);
}

#[test]
fn late_calls__are_cancelled_where_that_is_asked_for() {
    let servers = servers(1);
    let (told, was_told) = std::sync::mpsc::channel();
    let slow = Server::start(over(true, true), "127.0.0.1:0", move |endpoint| {
        keep_with(endpoint, ECHO, move |cx, responder| {
            let told = told.clone();
            cx.on_cancel(responder, move |_, _| told.send(()).unwrap());
        });
    });
    let mut client = client(over(true, true));
    let mut sessions = connect(&mut client, &servers);
    sessions.insert(0, client.connect_wait(slow.address).unwrap());
    let group = Group::new(sessions.clone()).unwrap();
    let cancel = GroupCall { late: Late::Cancel, ..to(ECHO, Need::Any) };
    let members = call(&mut client, &group, &pattern(5_000, 1), cancel).unwrap();
    assert!(matches!(members[0].outcome, MemberOutcome::Pending));
    client.run_until(|_, cx| cx.pending_calls(sessions[0]) == 0);
    while was_told.try_recv().is_err() {
        client.run_for(std::time::Duration::from_millis(1), |_, _| false);
    }
    drop(members);
    assert_eq!(client.buffers_in_use().count, 0);
}

#[test]
fn call__that_cannot_succeed_is_not_made() {
    let servers = servers(2);
    let mut client = client(over(true, true));
    let sessions = connect(&mut client, &servers);
    let group = Group::new(sessions.clone()).unwrap();
    let message = SharedMsg::from(client.alloc_message(b"x").unwrap());
    let cx = &mut client.context();
    let never = |_: &mut (), _: &mut petrel::Context<'_>, _| panic!("it was not made");
    for needed in [0, 3] {
        let refused = group.call(cx, &message, to(ECHO, Need::Quorum(needed)), never).unwrap_err();
        assert_eq!(refused.status(), Status::InvalidArgument);
        assert!(refused.to_string().contains("it has to be 1 to 2"), "{refused}");
    }
    client.close(sessions[0]);
    let failure = group
        .call(&mut client.context(), &message, to(ECHO, Need::All), never)
        .expect_err("a member is gone");
    assert_eq!(failure.failures().map(|(place, _)| place).collect::<Vec<_>>(), [0]);
    assert!(matches!(failure.members[1].outcome, MemberOutcome::Pending), "it was not called");
    assert_eq!(client.context().pending_calls(sessions[1]), 0);
}

#[test]
fn group__of_the_same_session_twice() {
    let servers = servers(1);
    let mut client = client(over(true, true));
    let session = connect(&mut client, &servers)[0];
    let refused = Group::new([session, session]).unwrap_err();
    assert_eq!(refused.status, Status::InvalidArgument);
    assert_eq!(refused.message, "members 0 and 1 of the group are the same");
}

/// Keeps the request until the test drops it.
const HOLD: u16 = 3;

/// Servers that pass requests of method HOLD to the test.
fn holding(count: usize) -> (Vec<Server>, mpsc::Receiver<WorkerRequest>) {
    let (keep, kept) = mpsc::channel();
    let start = |_| {
        let keep = keep.clone();
        Server::start(over(true, true), "127.0.0.1:0", move |endpoint| {
            hold(endpoint, HOLD, keep);
        })
    };
    ((0..count).map(start).collect(), kept)
}

fn of_clients(servers: &[Server]) -> ClientGroup {
    wait(ClientGroup::connect(servers.iter().map(|server| server.address))).unwrap()
}

fn minute() -> CallOptions {
    CallOptions::new().timeout(Duration::from_secs(60))
}

#[test]
fn clients__of_any_thread_are_called_together_and_come_back() {
    let mut servers = servers(3);
    let group = of_clients(&servers);
    let asked = async |need| {
        let options = minute().idempotent();
        group.call(ECHO, b"to all", need, options, Late::Finish).await
    };
    let members = wait(asked(Need::All)).unwrap();
    assert!(members.iter().all(|member| member.outcome.answer().unwrap() == b"to all"));
    servers[1].end();
    let members = wait(asked(Need::Quorum(2))).unwrap();
    assert!(members[0].outcome.answer().is_some() && members[2].outcome.answer().is_some());
    let failure = wait(asked(Need::All)).unwrap_err();
    assert_eq!(failure.failures().map(|(place, _)| place).collect::<Vec<_>>(), [1]);
    assert_eq!(petrel::Error::from(failure).status, Status::Unavailable);
    let _again = Server::start(over(true, true), &servers[1].address.to_string(), |_| {});
    let waits = minute().idempotent().wait_for_ready();
    let members = wait(group.call(ECHO, b"again", Need::All, waits, Late::Finish)).unwrap();
    assert!(members.iter().all(|member| member.outcome.answer().unwrap() == b"again"));
}

#[test]
fn clients__late_calls_are_carried_out_or_cancelled() {
    for late in [Late::Finish, Late::Cancel] {
        let (servers, kept) = holding(2);
        let group = of_clients(&servers);
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| {
                let called = group.call(HOLD, b"", Need::Any, minute(), late);
                wait(called).unwrap().iter().filter(|one| one.outcome.answer().is_some()).count()
            });
            let [first, second] = [(); 2].map(|()| kept.recv().unwrap());
            first.reply(b"first");
            assert_eq!(asked.join().unwrap(), 1);
            if late == Late::Cancel {
                while !second.is_cancelled() {
                    std::thread::yield_now();
                }
            } else {
                // A later call of the same client arrives later.
                let called = group.call(ECHO, b"", Need::All, minute(), late);
                wait(called).unwrap();
                assert!(!second.is_cancelled());
            }
            second.reply(b"second");
        });
    }
}

#[test]
fn clients__that_are_no_group() {
    let servers = servers(1);
    let client = Client::connect_wait(servers[0].address).unwrap();
    let twice = ClientGroup::new([client.clone(), client.clone()]).unwrap_err();
    assert_eq!(twice.message, "members 0 and 1 of the group are the same");
    assert_eq!(ClientGroup::new([]).unwrap_err().status, Status::InvalidArgument);
    let other = Client::connect_wait(servers[0].address).unwrap();
    let group = ClientGroup::new([client, other]).unwrap();
    let refused = wait(group.call(ECHO, b"", Need::Quorum(3), minute(), Late::Finish)).unwrap_err();
    assert_eq!(refused.status(), Status::InvalidArgument);
}
