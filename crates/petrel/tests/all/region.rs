//! Regions: operations of clients on a server's memory, and mappings of it.

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use petrel::client::{Background, Target};
use petrel::endpoint::{
    CallOptions, EndpointConfig, EndpointId, PathPolicy, SessionId, SessionState,
};
use petrel::region::{Access, MappedRights, Region, RegionMemory, Regions, RemoteRegion};
use petrel::server::RunningServer;
use petrel::{Client, Context, Endpoint, Error, Execution, Server, Status};

use crate::common::{ECHO, client, nexus, over, pattern};

// The operations, as §15.1 of the specification has them.
const READ: u16 = 65_520;
const READ_MANY: u16 = 65_524;
const READ_VERSIONED: u16 = 65_525;

/// A server of one region, with a client.
struct World {
    regions: Regions,
    region: Region,
    client: Client,
    _server: RunningServer,
}

impl World {
    fn new((udp, shm): (bool, bool), threads: usize, memory: RegionMemory, access: Access) -> Self {
        Self::of(over(udp, shm), threads, memory, access)
    }

    fn of(config: EndpointConfig, threads: usize, memory: RegionMemory, access: Access) -> Self {
        let regions = Regions::new();
        let region = regions.register(memory, access).unwrap();
        let served = regions.clone();
        let server = Server::bind("127.0.0.1:0")
            .threads(threads)
            .endpoint(config)
            .serve(|_| (), move |endpoint| endpoint.serve_regions(&served))
            .start()
            .unwrap();
        let client = Client::connect_wait(server.local_addr()).unwrap();
        Self { regions, region, client, _server: server }
    }

    fn private(transport: (bool, bool), bytes: u64) -> Self {
        let access = Access::READ | Access::WRITE | Access::ATOMIC;
        Self::new(transport, 1, RegionMemory::private(bytes).unwrap(), access)
    }

    fn remote(&self) -> RemoteRegion {
        RemoteRegion::new(&self.client, self.region.key())
    }

    /// Returns another client, with sessions of its own.
    fn client_of(&self, config: EndpointConfig) -> Client {
        let background = Background::builder().endpoint(config).start().unwrap();
        let client = Client::builder().background(&background);
        client.connect_wait(self._server.local_addr()).unwrap()
    }
}

const UDP: (bool, bool) = (true, false);
const SHM: (bool, bool) = (false, true);

fn status<T: std::fmt::Debug>(result: Result<T, Error>) -> Status {
    result.unwrap_err().status
}

#[test]
fn operations__over_both_transports() {
    for transport in [UDP, SHM] {
        let world = World::private(transport, 4096);
        let (region, remote) = (&world.region, world.remote());
        remote.write(3, b"petrel").wait().unwrap();
        assert_eq!(remote.read(2, 8).wait().unwrap(), b"\0petrel\0");
        assert_eq!(remote.read_many(&[(3, 3), (4000, 0), (6, 3)]).wait().unwrap(), b"petrel");
        assert_eq!(remote.fetch_add(64, 5).wait().unwrap(), 0);
        assert_eq!(remote.compare_swap(64, 4, 9).wait().unwrap(), 5);
        assert_eq!(remote.compare_swap(64, 5, 9).wait().unwrap(), 5);
        assert_eq!(region.load(64).unwrap(), 9);
        assert_eq!(remote.write_versioned(128, b"value").wait().unwrap(), 2);
        let read = remote.read_versioned(128, 5).wait().unwrap();
        assert_eq!((read.version, &read.value[..]), (2, &b"value"[..]));
        let stats = world.regions.stats();
        assert_eq!((stats.reads, stats.writes, stats.atomics), (5, 2, 3));
        assert_eq!((stats.bytes_read, stats.bytes_written, stats.refused), (19, 11, 0));
    }
}

#[test]
fn operations__of_many_packets() {
    const BYTES: usize = 3_000_001;
    for transport in [UDP, SHM] {
        let world = World::private(transport, BYTES as u64 + 5);
        let data: Vec<u8> = (0..BYTES).map(|at| (at * 7 + at / 256) as u8).collect();
        world.remote().write(5, data.clone()).wait().unwrap();
        let mut seen = vec![0; BYTES];
        world.region.read(5, &mut seen).unwrap();
        assert!(seen == data, "the whole message is in the region");
        assert!(world.remote().read(5, BYTES as u32).wait().unwrap() == data);
        let mut ends = [1; 5];
        world.region.read(0, &mut ends).unwrap();
        assert_eq!(ends, [0; 5], "nothing in front of it");
        let stats = world.regions.stats();
        assert_eq!((stats.writes, stats.bytes_written), (1, BYTES as u64));
    }
}

/// The bytes of a large write that is refused go nowhere.
/// Over several paths the packets of a write overtake each other, and have no buffer in which to wait.
#[test]
fn operations__of_many_packets_over_several_paths() {
    const BYTES: u64 = 300_000;
    for policy in [PathPolicy::Plb, PathPolicy::Coupled] {
        let mut config = over(true, false);
        config.host.udp.further_ports = 3;
        config.sessions.path_policy = policy;
        let memory = RegionMemory::private(BYTES).unwrap();
        let world = World::of(config.clone(), 1, memory, Access::READ | Access::WRITE);
        let remote = RemoteRegion::new(&world.client_of(config), world.region.key());
        let data: Vec<u8> = (0..BYTES - 10).map(|at| (at % 253) as u8).collect();
        remote.write(5, data.clone()).wait().unwrap();
        assert!(remote.read(5, data.len() as u32).wait().unwrap() == data, "{policy:?}");
        assert_eq!(world.regions.stats().writes, 1);
    }
}

#[test]
fn writes__of_many_packets_that_are_refused_change_nothing() {
    const BYTES: usize = 1_000_000;
    for transport in [UDP, SHM] {
        let world = World::private(transport, BYTES as u64);
        let remote = world.remote();
        assert_eq!(status(remote.write(1, vec![7; BYTES]).wait()), Status::OutOfRange);
        let reader = world.region.register_with(Access::READ).unwrap();
        let reading = RemoteRegion::new(&world.client, reader.key());
        assert_eq!(status(reading.write(0, vec![7; BYTES]).wait()), Status::PermissionDenied);
        assert!(reading.read(0, BYTES as u32).wait().unwrap().iter().all(|byte| *byte == 0));
        assert_eq!((world.regions.stats().writes, world.regions.stats().refused), (0, 2));
    }
}

/// A large write to memory of which the client's options are replaced.
#[test]
fn write__keeps_its_header_with_other_options() {
    let world = World::private(SHM, 100);
    let options = CallOptions::new().timeout(Duration::from_secs(30)).idempotent();
    world.remote().write(90, b"petrel").options(options).wait().unwrap();
    assert_eq!(world.remote().read(88, 10).wait().unwrap(), b"\0\0petrel\0\0");
}

/// The server takes no memory for a response that it could not send.
#[test]
fn reads__larger_than_the_largest_response_are_refused() {
    let world = World::private(UDP, 64 << 20);
    let remote = world.remote();
    let large = 8 << 20;
    assert_eq!(status(remote.read(0, large + 1).wait()), Status::ResourceExhausted);
    assert_eq!(status(remote.read_versioned(0, large).wait()), Status::ResourceExhausted);
    let pieces = [(0, large); 64];
    assert_eq!(status(remote.read_many(&pieces).wait()), Status::ResourceExhausted);
    assert_eq!(remote.read(0, large).wait().unwrap().len(), large as usize);
}

/// The endpoint has a short way for some whole words, which begin at both kinds of addresses: at a pair and within one.
#[test]
fn reads__of_whole_words_and_of_any_other_bytes() {
    const BYTES: u64 = 2_048;
    let world = World::private(UDP, BYTES);
    let remote = world.remote();
    let all: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
    world.region.write(0, &all).unwrap();
    let lengths = (0..=48).chain([56, 64, 72, 1_008, 1_015, 1_016, 1_017, 1_024, 1_032, 2_048]);
    let (mut reads, mut bytes, mut refused) = (0, 0, 0);
    // The longest first: the memory of its response serves the others.
    for len in lengths.rev() {
        for offset in [0, 8, 16, 24, 3, 2_040, 2_047, 2_048, u64::MAX - 7] {
            let read = remote.read(offset, len).wait();
            if offset > BYTES || u64::from(len) > BYTES - offset {
                assert_eq!(status(read), Status::OutOfRange, "{len} bytes at {offset}");
                refused += 1;
                continue;
            }
            let expected = &all[offset as usize..][..len as usize];
            assert_eq!(read.unwrap(), expected, "{len} bytes at {offset}");
            (reads, bytes) = (reads + 1, bytes + u64::from(len));
        }
    }
    let stats = world.regions.stats();
    assert_eq!((stats.reads, stats.bytes_read, stats.refused), (reads, bytes, refused));
}

/// A server of one region and a client, on one thread that runs their event loops in turn.
struct Turns {
    server: Endpoint,
    client: Endpoint,
    session: SessionId,
    regions: Regions,
    region: Option<Region>,
    /// Reads that had ended when the echo's handler ran.
    reads_at_echo: Rc<Cell<Option<u64>>>,
}

const LARGE: usize = 6 << 20;

/// Turns that a large read takes at least: a turn copies 256 KiB.
const LARGE_TURNS: usize = LARGE / (256 << 10);

impl Turns {
    fn new() -> Self {
        let nexus = nexus(Some("127.0.0.1:0".parse().unwrap()));
        let address = nexus.local_addr().unwrap();
        let mut server = nexus.endpoint(over(false, true)).unwrap();
        let regions = Regions::new();
        let access = Access::READ | Access::WRITE | Access::ATOMIC;
        let memory = RegionMemory::private(LARGE as u64 + 8).unwrap();
        let region = regions.register(memory, access).unwrap();
        region.write(8, &pattern(LARGE, 3)).unwrap();
        server.serve_regions(&regions);
        let reads_at_echo = Rc::new(Cell::new(None));
        let (seen, counted) = (Rc::clone(&reads_at_echo), regions.clone());
        server.on(ECHO, move |_, cx, request| {
            seen.set(Some(counted.stats().reads));
            request.reply(cx, b"")
        });
        let mut client = client(over(false, true));
        let session = client.connect(address).unwrap();
        let mut turns =
            Self { server, client, session, regions, region: Some(region), reads_at_echo };
        turns.run_until(|turns| turns.client.session_state(session) == SessionState::Open);
        turns
    }

    /// Runs both event loops until a condition holds. Returns the number of turns.
    fn run_until(&mut self, mut is_over: impl FnMut(&Self) -> bool) -> usize {
        let mut turns = 0;
        while !is_over(self) {
            self.client.run_once();
            self.server.run_once();
            turns += 1;
        }
        turns
    }

    fn request(&self, offset: u64, len: usize) -> Vec<u8> {
        let key = self.region.as_ref().unwrap().key().to_bytes();
        let (len, offset) = ((len as u32).to_le_bytes(), offset.to_le_bytes());
        [&key[..4], &len, &key[4..12], &offset].concat()
    }

    /// Begins a read. Returns the place of its outcome.
    fn read(&mut self, method: u16, offset: u64, len: usize) -> Rc<RefCell<Option<Outcome>>> {
        let request = self.request(offset, len);
        let outcome = Rc::new(RefCell::new(None));
        let put = Rc::clone(&outcome);
        let call = self.client.call(self.session, method, request).response_bytes(LARGE + 8);
        let then = move |_: &mut (), _: &mut Context<'_>, reply: petrel::Reply| {
            let ended = reply.message().map(<[u8]>::to_vec).map_err(|error| error.status);
            *put.borrow_mut() = Some(ended);
        };
        call.then(then).unwrap();
        outcome
    }
}

type Outcome = Result<Vec<u8>, Status>;

/// All reads come in one burst, with a request behind them that is served in the same turn.
#[test]
fn reads__of_megabytes_let_other_requests_pass() {
    let mut turns = Turns::new();
    let reads = [
        turns.read(READ, 8, LARGE),
        turns.read(READ_MANY, 8, LARGE),
        turns.read(READ_VERSIONED, 0, LARGE),
    ];
    turns.client.call(turns.session, ECHO, b"").then(|_, _, _| ()).unwrap();
    turns.run_until(|turns| turns.reads_at_echo.get().is_some());
    assert_eq!(turns.reads_at_echo.get(), Some(0), "no read has been executed as a whole before");
    let count = turns.run_until(|_| reads.iter().all(|read| read.borrow().is_some()));
    assert!(count >= 3 * LARGE_TURNS - 2, "{count} turns");
    let value = pattern(LARGE, 3);
    let [whole, many, versioned] = reads.map(|read| read.take().unwrap().unwrap());
    assert!(whole == value && many == value);
    assert!(versioned[..8] == [0; 8] && versioned[8..] == value);
    let stats = turns.regions.stats();
    assert_eq!((stats.reads, stats.bytes_read, stats.refused), (3, 3 * LARGE as u64, 0));
}

/// A small read that comes behind waits for no large one.
#[test]
fn reads__of_less_end_before_those_of_megabytes() {
    let mut turns = Turns::new();
    let large = turns.read(READ, 8, LARGE);
    let small = [turns.read(READ, 8, 100), turns.read(READ, 8, 100 << 10)];
    turns.run_until(|_| small.iter().all(|read| read.borrow().is_some()));
    assert!(large.borrow().is_none());
    turns.run_until(|_| large.borrow().is_some());
}

#[test]
fn reads__of_a_region_that_is_revoked_meanwhile() {
    let mut turns = Turns::new();
    let read = turns.read(READ, 8, LARGE);
    let echo = turns.client.call(turns.session, ECHO, b"");
    echo.then(|_, _, _| ()).unwrap();
    turns.run_until(|turns| turns.reads_at_echo.get().is_some());
    turns.region = None;
    turns.run_until(|_| read.borrow().is_some());
    assert_eq!(read.take(), Some(Err(Status::PermissionDenied)));
    let stats = turns.regions.stats();
    assert_eq!((stats.reads, stats.bytes_read, stats.refused), (0, 0, 1));
    // `petrel stats` shows the same.
    let json = turns.server.stats().to_json();
    assert!(json.contains("\"region_refused\":1") && json.contains("\"region_reads\":0"), "{json}");
    assert!(!turns.client.stats().to_json().contains("region_"), "the client serves none");
}

/// A value that is written while it is copied is copied again; one that is always written is given up.
#[test]
fn read_versioned__of_a_large_value_that_is_written_meanwhile() {
    let mut turns = Turns::new();
    for writes in [1, usize::MAX] {
        let read = turns.read(READ_VERSIONED, 0, LARGE);
        let mut left = writes;
        turns.reads_at_echo.set(None);
        turns.client.call(turns.session, ECHO, b"").then(|_, _, _| ()).unwrap();
        turns.run_until(|turns| turns.reads_at_echo.get().is_some());
        turns.run_until(|turns| {
            if left > 0 {
                left -= 1;
                turns.region.as_ref().unwrap().write_versioned(0, &left.to_le_bytes()).unwrap();
            }
            read.borrow().is_some()
        });
        match read.take().unwrap() {
            Ok(value) => {
                assert_eq!(writes, 1, "a value that is always written has no moment");
                assert_eq!(value[..16], [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            }
            Err(status) => assert_eq!((writes, status), (usize::MAX, Status::Aborted)),
        }
    }
}

/// A read whose caller gives up copies no more.
#[test]
fn reads__that_are_cancelled_end() {
    let mut turns = Turns::new();
    let request = turns.request(8, LARGE);
    let call = turns.client.call(turns.session, READ, request).response_bytes(LARGE);
    let key = call.then_cancellable(|_, _, _| ()).unwrap();
    turns.client.call(turns.session, ECHO, b"").then(|_, _, _| ()).unwrap();
    turns.run_until(|turns| turns.reads_at_echo.get().is_some());
    assert_eq!(turns.server.stats().tasks, 1);
    assert!(turns.client.context().cancel(key));
    let count = turns.run_until(|turns| turns.server.stats().tasks == 0);
    assert!(count < LARGE_TURNS / 2, "{count} turns");
    assert_eq!(turns.regions.stats().reads, 0);
}

#[test]
fn read_versioned__of_a_value_whose_writer_died() {
    let world = World::private(SHM, 64);
    world.region.store(0, 1).unwrap();
    assert_eq!(status(world.remote().read_versioned(0, 8).wait()), Status::Aborted);
    assert_eq!(status(world.remote().write_versioned(0, b"x").wait()), Status::Aborted);
}

#[test]
fn drop__of_a_region_refuses_its_key() {
    let World { regions, region, client, _server } = World::private(SHM, 64);
    let (remote, again) =
        (RemoteRegion::new(&client, region.key()), region.register_with(Access::READ).unwrap());
    remote.write(0, b"kept").wait().unwrap();
    drop(region);
    assert_eq!(status(remote.read(0, 4).wait()), Status::PermissionDenied);
    // The number may be taken again, by another region with another secret.
    let next = regions.register(RegionMemory::private(64).unwrap(), Access::READ).unwrap();
    assert_eq!(status(remote.read(0, 4).wait()), Status::PermissionDenied);
    assert_eq!(RemoteRegion::new(&client, next.key()).read(0, 4).wait().unwrap(), [0; 4]);
    assert_eq!(RemoteRegion::new(&client, again.key()).read(0, 4).wait().unwrap(), b"kept");
}

/// Returns a client whose sessions keep an order.
fn ordered_client(world: &World, (udp, shm): (bool, bool)) -> Client {
    let mut config = over(udp, shm);
    config.sessions.ordered = true;
    world.client_of(config)
}

/// Without the order, a small read would overtake the packets of a large write.
#[test]
fn operations__that_are_ordered_see_all_earlier_ones() {
    const BYTES: usize = 200_000;
    for transport in [UDP, SHM] {
        let world = World::private(transport, BYTES as u64);
        let client = ordered_client(&world, transport);
        let remote = RemoteRegion::new(&client, world.region.key());
        let pairs: Vec<_> = (1..=30_u8)
            .map(|number| {
                let write = remote.write(0, vec![number; BYTES]).ordered().started();
                let options = CallOptions::new().timeout(Duration::from_secs(60));
                let read = remote.read(BYTES as u64 - 8, 8).ordered().options(options).started();
                (number, write, read)
            })
            .collect();
        for (number, write, read) in pairs {
            assert_eq!(read.wait().unwrap(), [number; 8]);
            write.wait().unwrap();
        }
    }
}

#[test]
fn ordered__is_refused_without_an_order() {
    let world = World::private(SHM, 64);
    let refused = |remote: RemoteRegion| {
        let error = remote.fetch_add(0, 1).ordered().wait().unwrap_err();
        assert_eq!(
            (error.status, error.execution),
            (Status::FailedPrecondition, Execution::NotSent)
        );
    };
    refused(world.remote());
    let mut config = over(false, true);
    config.sessions.ordered = true;
    let background = Background::builder().endpoint(config).start().unwrap();
    let two = World::new(SHM, 2, RegionMemory::private(64).unwrap(), Access::ATOMIC);
    let address = two._server.local_addr();
    let targets = [0, 1].map(|number| Target::from((address, EndpointId(number))));
    let several = Client::builder().background(&background).connect_wait(targets.to_vec()).unwrap();
    refused(RemoteRegion::new(&several, two.region.key()));
    assert_eq!(two.region.load(0).unwrap(), 0, "it was not executed");
    let client = ordered_client(&world, SHM);
    let remote = RemoteRegion::new(&client, world.region.key());
    let hedged = remote.read(0, 8).hedge_after(Duration::from_secs(9)).ordered().wait();
    assert_eq!(status(hedged), Status::FailedPrecondition);
    assert_eq!(remote.fetch_add(0, 1).ordered().wait().unwrap(), 0, "none was executed");
}

#[test]
fn fetch_add__by_clients_of_two_endpoints_is_executed_once_each() {
    const CLIENTS: u64 = 4;
    const CALLS: u64 = 500;
    let access = Access::READ | Access::ATOMIC;
    let world = World::new(UDP, 2, RegionMemory::private(8).unwrap(), access);
    let (address, key) = (world._server.local_addr(), world.region.key());
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            scope.spawn(move || {
                let target =
                    Target { endpoint: EndpointId((number % 2) as u16), ..Target::from(address) };
                let client = Client::connect_wait(vec![target]).unwrap();
                let remote = RemoteRegion::new(&client, key);
                let mut last = None;
                for _ in 0..CALLS {
                    let former = remote.fetch_add(0, 1).wait().unwrap();
                    assert!(last < Some(former), "the word only grows");
                    last = Some(former);
                }
            });
        }
    });
    assert_eq!(world.region.load(0).unwrap(), CLIENTS * CALLS);
    assert_eq!(world.regions.stats().atomics, CLIENTS * CALLS);
}

#[test]
fn map_wait__is_the_servers_memory() {
    let all = Access::READ | Access::WRITE | Access::ATOMIC | Access::MAP;
    let memory = RegionMemory::shared(10_000, MappedRights::ReadWrite).unwrap();
    let world = World::new(UDP, 1, memory, all);
    let mapped = world.remote().map_wait().unwrap();
    world.region.write(9_990, b"from there").unwrap();
    let mut seen = [0; 10];
    mapped.read(9_990, &mut seen).unwrap();
    assert_eq!(&seen, b"from there");
    mapped.fetch_add(8, 7).unwrap();
    assert_eq!(world.remote().fetch_add(8, 1).wait().unwrap(), 7);
    mapped.write_versioned(64, b"value").unwrap();
    assert_eq!(world.remote().read_versioned(64, 5).wait().unwrap().value, b"value");
    assert_eq!(status(mapped.read(9_999, &mut seen)), Status::OutOfRange);
    assert_eq!(world.regions.stats().mapped, 1);
    // A mapping outlives the region.
    let remote = world.remote();
    drop(world.region);
    mapped.read(9_990, &mut seen).unwrap();
    assert_eq!(status(remote.map_wait()), Status::PermissionDenied);
}

/// Sets a flag when it is dropped, also by a panic.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A client of the same host changes words all the time, while the server's endpoint reads them for another client.
#[test]
fn reads__never_tear_a_word_that_a_mapped_writer_changes() {
    const BYTES: u64 = 4096;
    let all = Access::READ | Access::WRITE | Access::ATOMIC | Access::MAP;
    for transport in [UDP, SHM] {
        let memory = RegionMemory::shared(BYTES, MappedRights::ReadWrite).unwrap();
        let world = World::new(transport, 1, memory, all);
        let mapped = world.remote().map_wait().unwrap();
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for byte in (1..=255_u8).cycle() {
                    mapped.write(0, &[byte; BYTES as usize]).unwrap();
                    if ends.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            let _ends = SetAtEnd(&ends);
            let (mut last, mut changes) = (0, 0);
            // Until the writer has been seen at work, however late it gets a CPU.
            for number in 0.. {
                let read = world.remote().read(0, BYTES as u32).wait().unwrap();
                let (words, _) = read.as_chunks::<8>();
                let torn = words.iter().find(|word| **word != [word[0]; 8]);
                assert_eq!(torn, None, "read {number}");
                changes += usize::from(read[0] != last);
                last = read[0];
                if number >= 300 && changes >= 5 {
                    break;
                }
            }
        });
    }
}

#[test]
fn map_wait__for_reading_cannot_be_written_to() {
    let error = World::private(UDP, 64).remote().map_wait().unwrap_err();
    assert_eq!((error.status, error.execution), (Status::PermissionDenied, Execution::Answered));
    let memory = RegionMemory::shared(4096, MappedRights::Read).unwrap();
    let world = World::new(SHM, 1, memory, Access::READ | Access::MAP);
    let mapped = world.remote().map_wait().unwrap();
    world.region.write(0, b"news").unwrap();
    let mut seen = [0; 4];
    mapped.read(0, &mut seen).unwrap();
    assert_eq!((&seen, mapped.is_writable()), (b"news", false));
    assert_eq!(status(mapped.write(0, b"x")), Status::PermissionDenied);
    assert_eq!(status(mapped.store(0, 1)), Status::PermissionDenied);
}

/// A process of the same user that knows the socket's name but no key.
#[test]
fn map_wait__while_others_talk_nonsense_to_the_socket() {
    let memory = RegionMemory::shared(4096, MappedRights::Read).unwrap();
    let world = World::new(UDP, 1, memory, Access::READ | Access::MAP);
    world.remote().map_wait().unwrap();
    let request = [&world.region.key().to_bytes()[..12], &[0; 12]].concat();
    // The operation MAP, as the specification has it: number, length 0, secret, offset 0.
    let request = [&request[..4], &[0; 4], &request[4..12], &[0; 8]].concat();
    let name = world.client.call(65_527, request).wait().unwrap().into_vec();
    let connect =
        || UnixStream::connect_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let mut guess = connect();
    guess.write_all(&[0; 12]).unwrap();
    drop(connect());
    let silent = connect();
    let began = std::time::Instant::now();
    world.remote().map_wait().expect("the silent peer's time ends first");
    assert!(began.elapsed() < Duration::from_secs(20));
    drop(silent);
    let stats = world.regions.stats();
    assert_eq!((stats.mapped, stats.refused), (2, 1));
}
