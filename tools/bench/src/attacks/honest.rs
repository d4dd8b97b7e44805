//! Honest clients: calls of several sizes without pause, and newcomers.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;

use petrel::endpoint::{EndpointConfig, IdlePolicy, SessionId};
use petrel::nexus::{NexusBuilder, fetch_stats, fetch_stats_inside};
use petrel::{Endpoint, Nexus};
use petrel_command::credentials;
use petrel_command::failure::Failure;
use petrel_command::methods;

use super::calls::{Honest, Report, Shared};
use petrel_command::args::BenchTransport;

/// Sizes of calls in bytes: mostly small, some that just fill a packet, some of many packets.
const SIZES: [usize; 16] =
    [32, 32, 32, 1_440, 32, 32, 5_000, 32, 32, 32, 60_000, 32, 32, 1_440, 32, 1 << 20];

/// The largest message that servers accept by default. After a large call a session keeps the answer's
/// memory; a newcomer's large call shows whether the server has memory left.
const LARGE_BYTES: usize = 8 << 20;

/// A call that takes longer has failed.
const CALL_TIMEOUT_NS: u64 = 5_000_000_000;

/// The time limit for fetching a newcomer's counters.
const STATS_TIMEOUT: Duration = Duration::from_secs(3);

/// An endpoint for calls over UDP: attackers target the data port.
pub(super) fn endpoint() -> Result<Endpoint, Failure> {
    endpoint_of(credentials::apply(Nexus::builder(), false))
}

/// [`endpoint`] of a control plane.
pub(super) fn endpoint_of(nexus: NexusBuilder) -> Result<Endpoint, Failure> {
    let mut config = EndpointConfig::default();
    config.transports = BenchTransport::Udp.only();
    config.idle = IdlePolicy::default();
    config.sessions.accept = false;
    config.protocol.call_timeout_ns = CALL_TIMEOUT_NS;
    nexus.start()?.endpoint(config).map_err(Failure::because)
}

/// Starts the thread of a client with one session. Returns the port of its data, too.
pub(super) fn start(address: SocketAddr) -> Result<(Honest, u16), Failure> {
    let (sender, receiver) = mpsc::channel::<Result<u16, Failure>>();
    let open = move || {
        let mut endpoint = endpoint()?;
        let session = endpoint.connect_wait(address)?;
        Ok::<_, Failure>((endpoint, session))
    };
    // If the client has no session, the start fails, and the report is dropped.
    let client = move |state: &Shared| match open() {
        Ok((endpoint, session)) => {
            let _ = sender.send(Ok(endpoint.transport().udp().local_addr().port()));
            make_calls(endpoint, session, address, state)
        }
        Err(failure) => {
            let _ = sender.send(Err(failure));
            Report::default()
        }
    };
    let honest = Honest::start([client]);
    let died = |_| Failure::because("the honest client's thread has ended");
    let port = receiver.recv().map_err(died)??;
    Ok((honest, port))
}

/// Makes checked calls until the end of the attacks. A call that fails is followed by a new session.
fn make_calls(
    mut endpoint: Endpoint,
    mut session: SessionId,
    address: SocketAddr,
    state: &Shared,
) -> Report {
    let mut report = Report::default();
    while !state.is_over() {
        let size = SIZES[report.calls as usize % SIZES.len()];
        let request = vec![report.calls as u8; size];
        let outcome = endpoint.call(session, methods::ECHO, &request).wait();
        report.calls += 1;
        state.count();
        let failure = match outcome {
            Ok(reply) if reply[..] == request[..] => continue,
            Ok(_) => "the reply is wrong".to_owned(),
            Err(error) => error.to_string(),
        };
        report.failed += 1;
        report.failure.get_or_insert(format!("{size} B: {failure}"));
        if let Ok(again) = endpoint.connect_wait(address) {
            endpoint.close(session);
            session = again;
        }
    }
    report
}

/// Runs an independent client: connects, makes a small call and a call of the largest default size, and
/// asks for counters.
pub(super) fn newcomer(address: SocketAddr) -> Result<(), Failure> {
    let mut endpoint = endpoint()?;
    let session = endpoint.connect_wait(address)?;
    let reply = endpoint.call(session, methods::ECHO, b"hello").wait()?;
    if reply[..] != *b"hello" {
        return Err(Failure::because("the reply to a newcomer is wrong"));
    }
    let request = vec![7; LARGE_BYTES];
    let reply = endpoint.call(session, methods::ECHO, &request).wait()?;
    if reply[..] != request[..] {
        return Err(Failure::because("the large reply to a newcomer is wrong"));
    }
    match credentials::get() {
        None => fetch_stats(address, STATS_TIMEOUT),
        Some(security) => fetch_stats_inside(address, STATS_TIMEOUT, &**security),
    }?;
    Ok(())
}
