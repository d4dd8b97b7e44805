//! Two endpoints over shared memory, with full rings.

use petrel::endpoint::AllowedTransports;
use petrel::endpoint::{EndpointConfig, IdlePolicy, SessionId, SessionState};
use petrel::{Endpoint, Nexus, Status};

use super::*;

fn config(ring_bytes: usize, max_frame_bytes: usize) -> EndpointConfig {
    let mut config = EndpointConfig::default();
    config.transports = AllowedTransports::SHM;
    config.idle = IdlePolicy::Poll;
    config.host.shm.ring_bytes = ring_bytes;
    config.host.shm.max_frame_bytes = max_frame_bytes;
    config.memory.poison = true;
    config
}

struct Pair {
    _nexus: Nexus,
    client: Rc<RefCell<Endpoint>>,
    server: Endpoint,
    sessions: [SessionId; 2],
    app: Shared,
}

/// Two endpoints with two sessions between them; the server has no handler yet.
fn pair(config: &EndpointConfig) -> Pair {
    let nexus = Nexus::builder().listen(([127, 0, 0, 1], 0).into()).start().unwrap();
    let mut server = nexus.endpoint(config.clone()).unwrap();
    let mut client = nexus.endpoint(config.clone()).unwrap();
    let address = nexus.local_addr().expect("it listens");
    let sessions = [client.connect(address).unwrap(), client.connect(address).unwrap()];
    let start = Instant::now();
    while sessions.iter().any(|&session| client.session_state(session) != SessionState::Open) {
        client.run_once();
        server.run_once();
        assert!(start.elapsed() < HANG, "it hangs");
    }
    let client = Rc::new(RefCell::new(client));
    Pair { _nexus: nexus, client, server, sessions, app: Shared::default() }
}

impl Pair {
    fn run_until(&mut self, done: impl Fn(&App) -> bool) {
        let start = Instant::now();
        while !done(&self.app.borrow()) {
            self.client.borrow_mut().run_once();
            self.server.run_once();
            assert!(start.elapsed() < HANG, "it hangs");
        }
    }
}

fn all_ended(app: &App) -> bool {
    app.succeeded + app.failed.len() as u32 == app.calls
}

/// Ends a session with its calls, and makes calls on another session in the returned memory, until the ring is full.
/// The server does not run meanwhile.
fn reuse(client: &mut Endpoint, app: &Shared, [ends, stays]: [SessionId; 2], lens: &[usize]) {
    let pending = app.borrow().calls;
    client.close(ends);
    let start = Instant::now();
    while !all_ended(&app.borrow()) {
        client.run_once();
        assert!(start.elapsed() < HANG, "it hangs");
    }
    assert_eq!(app.borrow().failed.len(), pending as usize);
    let blocked = client.stats().transport.tx_blocked;
    while client.stats().transport.tx_blocked == blocked {
        lens.iter().for_each(|&len| call(app, &mut client.context(), stays, len));
        (0..10).for_each(|_| _ = client.run_once());
        assert!(start.elapsed() < HANG, "the ring is never full");
    }
}

#[test]
fn shm__a_request_in_the_ring_stays_while_its_sender_uses_its_memory_again() {
    const LEN: usize = 200_000;
    let mut pair = pair(&config(1 << 20, LEN + 64));
    let (client, app, sessions) = (Rc::clone(&pair.client), Rc::clone(&pair.app), pair.sessions);
    let looks = Rc::new(RefCell::new(0));
    let looked = Rc::clone(&looks);
    pair.server.on(ECHO, move |_, cx, request| {
        *looked.borrow_mut() += 1;
        if *looked.borrow() > 1 {
            return echo(cx, request);
        }
        // Not copied: the request lies in the ring, and its sender goes on.
        let before = request.data().as_ptr();
        // Shorter messages, small enough for its place.
        reuse(&mut client.borrow_mut(), &app, sessions, &[LEN / 3]);
        assert_eq!(request.data().as_ptr(), before);
        echo(cx, request)
    });
    call(&pair.app, &mut pair.client.borrow_mut().context(), pair.sessions[0], LEN);
    pair.run_until(|app| app.calls > 1 && all_ended(app));
    let app = pair.app.borrow();
    assert_eq!(app.failed, [Status::Cancelled]);
    assert!(app.succeeded > 3 && *looks.borrow() == app.succeeded + 1);
    drop(app);
    give_back(&pair.app, &pair.client.borrow());
}

#[test]
fn shm__a_stalled_server_gets_frames_sent_before_the_cancellation() {
    let mut pair = pair(&config(64 << 10, 4_096));
    let executed = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&executed);
    pair.server.on(ECHO, move |_, cx, request| {
        seen.borrow_mut().push(call_of(request.data()));
        echo(cx, request)
    });
    // Small messages that reach the ring, and large ones that reach it in part.
    let lens = [100, 3_000, 50_000, 9_000, 150_000];
    let first = pair.sessions[0];
    {
        let mut client = pair.client.borrow_mut();
        lens.iter().for_each(|&len| call(&pair.app, &mut client.context(), first, len));
        (0..100).for_each(|_| _ = client.run_once());
        reuse(&mut client, &pair.app, pair.sessions, &lens);
    }
    pair.run_until(all_ended);
    let app = pair.app.borrow();
    assert_eq!(app.failed, [Status::Cancelled; 5]);
    assert_eq!(app.succeeded, app.calls - 5);
    // The first two were whole in the ring before their buffers returned and were overwritten.
    assert!(executed.borrow().starts_with(&[Some(0), Some(1)]), "{executed:?}");
    drop(app);
    give_back(&pair.app, &pair.client.borrow());
}
