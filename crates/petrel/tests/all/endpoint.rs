//! Endpoints over the real control plane and the real transports.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use crate::common::{ECHO, Server, client, free_address, nexus, open, over, pattern};
use petrel::endpoint::EndpointId;
use petrel::endpoint::{EndpointConfig, IdlePolicy, SessionState};
use petrel::{Execution, Status};
use petrel_skip::{Need, skip};
use petrel_transport::host::Host;

fn failure(error: petrel::Error) -> (Status, String, Execution) {
    (error.status, error.message.clone(), error.execution)
}

fn echo_sizes(listen: &str, server: EndpointConfig, mut config: EndpointConfig) -> bool {
    let server = Server::start(server, listen, |_| {});
    config.data_address = Some(server.address.ip());
    let mut client = client(config);
    let session = client.connect_wait(server.address).unwrap();
    let packet = client.core().agreed(session).unwrap().packet_bytes as usize;
    for len in [0, 1, 32, packet, packet + 1, 1 << 20, 8 << 20] {
        let message = pattern(len, len as u64);
        let reply = client.call(session, ECHO, &message).wait().unwrap();
        assert!(reply[..] == message[..], "{len} bytes differ");
    }
    let peer = client.session_peer_id(session).unwrap();
    Host::is_near(peer)
}

#[test]
fn echo__every_size_over_every_transport() {
    assert!(!echo_sizes("127.0.0.1:0", over(true, true), over(true, false)));
    assert!(!echo_sizes("127.0.0.1:0", over(true, false), over(true, true)));
    assert!(echo_sizes("127.0.0.1:0", over(true, true), over(false, true)));
    assert!(echo_sizes("127.0.0.1:0", over(true, true), over(true, true)), "shm is preferred");
}

#[test]
fn echo__over_ipv6() {
    if std::net::UdpSocket::bind("[::1]:0").is_err() {
        return skip(Need::Ipv6, "this host has no IPv6 loopback");
    }
    assert!(!echo_sizes("[::1]:0", over(true, false), over(true, false)));
}

/// The configuration promises up to 1 GiB; message memory has to hold more than the default sizes.
#[test]
fn echo__a_message_far_above_the_default_size() {
    const LEN: usize = 40 << 20;
    for (udp, shm) in [(true, false), (false, true)] {
        let mut config = over(udp, shm);
        config.sessions.message_bytes_max = 1 << 30;
        let server = Server::start(config.clone(), "127.0.0.1:0", |_| {});
        let mut client = client(config);
        let session = client.connect_wait(server.address).unwrap();
        let message = pattern(LEN, 7);
        let reply = client.call(session, ECHO, &message).wait().unwrap();
        assert!(reply[..] == message[..], "the bytes differ");
    }
}

#[test]
fn alloc__the_largest_message_that_can_be_agreed_on() {
    let mut config = EndpointConfig::default();
    config.memory.max_bytes = 2 << 30;
    let client = client(config);
    // Nothing is written, so no pages are allocated.
    let message = client.alloc(1 << 30).unwrap();
    assert_eq!(message.capacity(), 1 << 30);
}

#[test]
fn timeouts_that_contradict_each_other_are_refused_with_the_configuration() {
    let mut config = EndpointConfig::default();
    config.protocol.rto.min_ns = config.protocol.rto.max_ns + 1;
    let refused = nexus(None).endpoint(config).err().unwrap().to_string();
    assert!(refused.contains("timeout"), "{refused}");
}

#[test]
fn idle__every_policy_serves() {
    for idle in
        [IdlePolicy::Poll, IdlePolicy::SpinThenBlock(Duration::from_micros(5)), IdlePolicy::Block]
    {
        for (udp, shm) in [(true, false), (false, true)] {
            let mut config = over(udp, shm);
            config.idle = idle;
            let server = Server::start(config.clone(), "127.0.0.1:0", |_| {});
            // Two ends spinning on a single core would delay the peer.
            config.idle = IdlePolicy::Block;
            let mut client = client(config);
            let session = client.connect_wait(server.address).unwrap();
            for round in 0..200u64 {
                let message = pattern(40, round);
                let reply = client.call(session, ECHO, &message).wait().unwrap();
                assert_eq!(reply[..], message[..]);
            }
        }
    }
}

#[test]
fn handlers__answer_later_fail_forget_and_are_missing() {
    let server = Server::start(over(true, true), "127.0.0.1:0", |endpoint| {
        let kept = Rc::new(RefCell::new(None));
        let keep = Rc::clone(&kept);
        endpoint.on(2, move |_, cx, request| {
            let (responder, handled) = request.defer(cx);
            *keep.borrow_mut() = Some(responder);
            handled
        });
        endpoint.on(3, move |_, cx, request| {
            if let Some(first) = kept.borrow_mut().take() {
                first.reply(cx, b"released");
            }
            request.reply(cx, b"releasing")
        });
        endpoint.on(4, |_, cx, request| request.fail(cx, Status::NotFound, "no such thing: naïve"));
        endpoint.on(5, |_, cx, request| request.defer(cx).1);
        endpoint.on(6, |_, cx, request| request.reply_with(cx, (8 << 20) + 1, |_, out| out.len()));
        endpoint.on(7, |_, cx, request| request.reply(cx, &[7; 3000]));
    });
    let mut client = client(over(true, true));
    let session = client.connect_wait(server.address).unwrap();

    let released = Rc::new(Cell::new(false));
    let seen = Rc::clone(&released);
    client
        .call(session, 2, b"")
        .then(move |_, _, reply| {
            assert_eq!(reply.message().unwrap(), b"released");
            seen.set(true);
        })
        .unwrap();
    assert_eq!(&client.call(session, 3, b"").wait().unwrap()[..], b"releasing");
    client.run_until(|_, _| released.get());

    let end = failure(client.call(session, 4, b"").wait().unwrap_err());
    assert_eq!(end, (Status::NotFound, "no such thing: naïve".to_owned(), Execution::Answered));
    let (status, message, _) = failure(client.call(session, 5, b"").wait().unwrap_err());
    assert_eq!((status, &*message), (Status::Internal, "the handler dropped the request"));
    let end = failure(client.call(session, 6, b"").wait().unwrap_err());
    let text = "the response exceeds what the caller accepts".to_owned();
    assert_eq!(end, (Status::ResourceExhausted, text, Execution::Answered));
    let small = client.alloc(2999).unwrap();
    let end = client.call(session, 7, b"").into_buffer(small).wait();
    let (status, ..) = failure(end.unwrap_err());
    assert_eq!(status, Status::ResourceExhausted, "a response larger than the caller's buffer");
    assert_eq!(client.call(session, 7, b"").wait().unwrap().len(), 3000);
    let (status, ..) = failure(client.call(session, 999, b"").wait().unwrap_err());
    assert_eq!(status, Status::Unimplemented);
    let too_long = vec![0; (8 << 20) + 1];
    let refused = client.call(session, ECHO, &too_long).wait().unwrap_err();
    assert_eq!(refused.execution, Execution::NotSent, "refused before anything is sent");
    let text = "the request has 8388609 bytes, and the server accepts 8388608";
    assert_eq!(refused.message, text);
    assert_eq!(&client.call(session, ECHO, b"still fine").wait().unwrap()[..], b"still fine");
}

#[test]
fn nested__a_handler_calls_another_server_and_answers_from_the_continuation() {
    let back = Server::start(over(true, true), "127.0.0.1:0", |_| {});
    let back_address = back.address;
    let front = Server::start(over(true, true), "127.0.0.1:0", move |endpoint| {
        let session = endpoint.connect_wait(back_address).unwrap();
        endpoint.on(2, move |_, cx, request| {
            let (deferred, handled) = request.defer_message(cx);
            let Some((responder, message)) = deferred else { return handled };
            let room = cx.alloc(message.len()).unwrap();
            cx.call(session, ECHO, message)
                .into_buffer(room)
                .then(move |_, cx, reply| match reply.into_response() {
                    Ok(response) => responder.reply_buffer(cx, response),
                    Err(failure) => responder.fail(cx, failure.status, &failure.message),
                })
                .unwrap();
            handled
        });
    });
    let mut client = client(over(true, true));
    let session = client.connect_wait(front.address).unwrap();
    for len in [0, 5, 1500, 300_000] {
        let message = pattern(len, 3);
        assert!(client.call(session, 2, &message).wait().unwrap()[..] == message[..]);
    }
}

#[test]
fn connect__without_a_listener_is_refused() {
    let address = free_address();
    let mut client = client(over(true, true));
    let error = client.connect_wait(address).unwrap_err();
    assert_eq!((error.status, error.execution), (Status::Unavailable, Execution::NotSent));
    let begin = format!("no process listens at {address}");
    assert!(error.message.starts_with(&begin), "{error}");
}

#[test]
fn connect__to_a_missing_endpoint_is_refused() {
    let server = Server::start(over(true, true), "127.0.0.1:0", |_| {});
    let mut client = client(over(true, true));
    let error = client.connect_wait_to(server.address, EndpointId(9)).unwrap_err();
    assert_eq!(error.status, Status::Unavailable, "{error}");
}

#[test]
fn connect__before_the_endpoint_is_there_waits_for_it() {
    let process = nexus(Some("127.0.0.1:0".parse().unwrap()));
    let mut client = client(over(true, true));
    let session = client.connect(process.local_addr().unwrap()).unwrap();
    while process.stats().links_early == 0 {
        client.run_once();
        std::thread::yield_now();
    }
    let mut server = process.endpoint(over(true, true)).unwrap();
    open(&mut client, &mut server, session);
}

#[test]
fn connect__calls_made_at_once_wait_for_the_session() {
    let server = Server::start(over(true, true), "127.0.0.1:0", |_| {});
    let mut client = client(over(true, true));
    let session = client.connect(server.address).unwrap();
    assert_eq!(client.session_state(session), SessionState::Opening);
    assert_eq!(&client.call(session, ECHO, b"early").wait().unwrap()[..], b"early");
    assert_eq!(client.session_state(session), SessionState::Open);
}

#[test]
fn close__pending_calls_end_and_the_server_forgets_the_session() {
    let server = Server::start(over(true, true), "127.0.0.1:0", |endpoint| {
        endpoint.on(2, |_, cx, request| {
            let sessions = 0u32;
            request.reply(cx, &sessions.to_le_bytes())
        });
    });
    let mut client = client(over(true, true));
    let first = client.connect_wait(server.address).unwrap();
    client.call(first, ECHO, b"x").wait().unwrap();
    client.close(first);
    assert!(matches!(client.session_state(first), SessionState::Ended(_)));
    client.call(first, ECHO, b"").then(|_, _, _| {}).unwrap_err();
    let second = client.connect_wait(server.address).unwrap();
    client.call(second, ECHO, b"y").wait().unwrap();
    assert_ne!(first, second);
}

#[test]
fn endpoints__several_in_one_process_with_sessions_in_both_roles() {
    let nexus = nexus(Some("127.0.0.1:0".parse().unwrap()));
    let address = nexus.local_addr().unwrap();
    let mut first = nexus.endpoint(over(true, true)).unwrap();
    let mut second = nexus.endpoint(over(true, true)).unwrap();
    for endpoint in [&mut first, &mut second] {
        endpoint.on(ECHO, |_, cx, request| {
            request.reply_with(cx, 100, |data, out| {
                out[..data.len()].copy_from_slice(data);
                data.len()
            })
        });
    }
    let there = first.connect_to(address, EndpointId(1)).unwrap();
    let back = second.connect_to(address, EndpointId(0)).unwrap();
    let done = Rc::new(Cell::new(0));
    for round in 0..50u64 {
        for (endpoint, session) in [(&mut first, there), (&mut second, back)] {
            let done = Rc::clone(&done);
            endpoint
                .call(session, ECHO, round.to_le_bytes())
                .then(move |_, _, reply| {
                    assert_eq!(reply.message().unwrap(), round.to_le_bytes());
                    done.set(done.get() + 1);
                })
                .unwrap();
        }
    }
    while done.get() < 100 {
        first.run_once();
        second.run_once();
        std::thread::yield_now();
    }
    assert_eq!(first.stats().sessions, 2);
}

#[test]
fn buffers__come_back() {
    let server = Server::start(over(true, true), "127.0.0.1:0", |_| {});
    let mut client = client(over(true, true));
    let session = client.connect_wait(server.address).unwrap();
    for len in [3, 100_000] {
        drop(client.call(session, ECHO, &pattern(len, 1)).wait().unwrap());
        assert_eq!(client.buffers_in_use().count, 0);
    }
}

/// A program that drives an endpoint by turns sleeps after a turn without work.
#[test]
fn run_once__returns_true_for_turns_with_work() {
    for (udp, shm) in [(true, false), (false, true)] {
        let serving = nexus(Some("127.0.0.1:0".parse().unwrap()));
        let mut server = serving.endpoint(over(udp, shm)).unwrap();
        let served = Rc::new(Cell::new(0));
        let counted = Rc::clone(&served);
        server.on(2, move |_, cx, request| {
            counted.set(counted.get() + 1);
            request.reply(cx, b"served")
        });
        let mut client = client(over(udp, shm));
        let session = client.connect(serving.local_addr().unwrap()).unwrap();
        open(&mut client, &mut server, session);
        let answered = Rc::new(Cell::new(0));
        for number in 1..=20 {
            let seen = Rc::clone(&answered);
            client.call(session, 2, [0; 8]).then(move |_, _, _| seen.set(number)).unwrap();
            let before = (served.get(), answered.get());
            while answered.get() < number {
                let is_served = served.get() > before.0;
                let has_happened = server.run_once();
                assert!(has_happened || is_served == (served.get() > before.0), "a handler ran");
                let has_happened = client.run_once();
                assert!(has_happened || answered.get() < number, "a continuation ran");
            }
        }
    }
}

/// Over shared memory a handler's answer goes straight into the ring; no other step of the turn would publish it.
#[test]
fn run_once__answers_a_lone_call_in_the_turn_that_takes_it() {
    let serving = nexus(Some("127.0.0.1:0".parse().unwrap()));
    let mut server = serving.endpoint(over(false, true)).unwrap();
    server.on(2, |_, cx, request| request.reply(cx, b"served"));
    let mut client = client(over(false, true));
    let session = client.connect(serving.local_addr().unwrap()).unwrap();
    open(&mut client, &mut server, session);
    let answered = Rc::new(Cell::new(0));
    for number in 1..=20 {
        let seen = Rc::clone(&answered);
        client.call(session, 2, [0; 8]).then(move |_, _, _| seen.set(number)).unwrap();
        client.run_once();
        server.run_once();
        client.run_once();
        assert_eq!(answered.get(), number, "three turns are enough");
    }
}

/// A handler's knowledge of its caller: at once, later, and in a task or a separate thread.
#[test]
fn peer__identifies_the_caller_to_handlers() {
    for (config, is_shm) in [(over(true, false), false), (over(false, true), true)] {
        let (tell, told) = std::sync::mpsc::channel();
        let server = Server::start(config.clone(), "127.0.0.1:0", move |endpoint| {
            let tell_now = tell.clone();
            endpoint.on(5, move |_, cx, request| {
                tell_now.send(request.peer(cx).cloned()).unwrap();
                let (responder, handled) = request.defer(cx);
                tell_now.send(responder.peer(cx).cloned()).unwrap();
                responder.reply(cx, b"");
                handled
            });
            let tell_in_task = tell.clone();
            endpoint.on_async(6, move |_, request| {
                tell_in_task.send(request.peer().cloned()).unwrap();
                async { Ok(b"") }
            });
            endpoint.on(7, move |_, cx, request| {
                let (request, handled) = request.detach(cx);
                tell.send(request.peer().cloned()).unwrap();
                request.reply(b"");
                handled
            });
        });
        let mut client = client(config);
        let session = client.connect_wait(server.address).unwrap();
        client.call(session, 5, "").wait().unwrap();
        client.call(session, 6, "").wait().unwrap();
        client.call(session, 7, "").wait().unwrap();
        let peers: Vec<_> =
            told.try_iter().map(|peer| peer.expect("the session is open")).collect();
        assert_eq!(peers.len(), 4);
        assert!(peers.windows(2).all(|pair| pair[0] == pair[1]));
        let peer = &peers[0];
        assert!(peer.name.address.ip().is_loopback());
        assert_eq!((peer.name.endpoint, peer.is_networked), (EndpointId(0), !is_shm));
        let process = peer.process.map(|process| (process.pid, process.uid, process.gid));
        let own = (std::process::id(), rustix::process::geteuid(), rustix::process::getegid());
        let own = (own.0, own.1.as_raw(), own.2.as_raw());
        assert_eq!(process, is_shm.then_some(own));
        // The client knows the same of the server, with the listening address as the server's address.
        let server_peer = client.session_peer(session).unwrap();
        assert_eq!(server_peer.name.address, server.address);
        assert_ne!(server_peer.incarnation, peer.incarnation);
        assert_eq!(server_peer.process.map(|process| process.pid), is_shm.then(std::process::id));
        let text = format!("{} endpoint 0", server.address);
        let process = format!(" (process {} of user {})", own.0, own.1);
        assert_eq!(server_peer.to_string(), text + if is_shm { &process } else { "" });
    }
}
