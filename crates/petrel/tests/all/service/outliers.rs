//! Slow and failing servers among others, called by a client with default settings.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use petrel::server::RunningServer;
use petrel::{Client, Endpoint, Error, Server, Status};

const WORK: u16 = 1;

/// Far longer than a server takes to be well again.
const HANG_GUARD: Duration = Duration::from_secs(60);

/// A server whose handler takes a time, and may fail.
struct Replica {
    server: RunningServer,
    takes_us: Arc<AtomicU64>,
    fails: Arc<AtomicBool>,
    came: Arc<AtomicU32>,
}

fn replica(takes: Duration) -> Replica {
    let takes_us = Arc::new(AtomicU64::new(takes.as_micros() as u64));
    let (fails, came) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let shared = (Arc::clone(&takes_us), Arc::clone(&fails), Arc::clone(&came));
    let set_up = move |endpoint: &mut Endpoint| {
        let (takes_us, fails, came) = shared.clone();
        endpoint.on_async(WORK, move |handle, _| {
            came.fetch_add(1, Ordering::Relaxed);
            let takes = Duration::from_micros(takes_us.load(Ordering::Relaxed));
            let fails = fails.load(Ordering::Relaxed);
            async move {
                handle.sleep(takes).await;
                if fails { Err(Error::new(Status::Internal, "broken")) } else { Ok("done") }
            }
        });
    };
    let server = Server::bind("127.0.0.1:0").serve(|_| (), set_up).start().unwrap();
    Replica { server, takes_us, fails, came }
}

fn came(replicas: &[Replica]) -> Vec<u32> {
    replicas.iter().map(|replica| replica.came.load(Ordering::Relaxed)).collect()
}

fn connect(replicas: &[Replica]) -> Client {
    let addresses: Vec<_> = replicas.iter().map(|replica| replica.server.local_addr()).collect();
    let client = Client::connect_wait(addresses).unwrap();
    while client.stats().servers_ready < replicas.len() as u64 {
        std::thread::yield_now();
    }
    client
}

/// Makes calls from several threads, with a pause between the calls of a thread. Returns the number of failures.
fn load(client: &Client, callers: u32, calls: u32) -> u32 {
    std::thread::scope(|scope| {
        let call = || {
            (0..calls)
                .filter(|_| {
                    std::thread::sleep(Duration::from_millis(2));
                    client.call(WORK, "").wait().is_err()
                })
                .count() as u32
        };
        let threads: Vec<_> = (0..callers).map(|_| scope.spawn(call)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

#[test]
fn slow_replica__gets_few_calls_and_its_share_when_it_is_well_again() {
    let ms = Duration::from_millis;
    // Far slower than a good server whose thread loses its CPU for a while.
    let replicas = [replica(ms(1)), replica(ms(2_000)), replica(ms(1))];
    let client = connect(&replicas);
    assert_eq!(load(&client, 64, 100), 0);
    let shares = came(&replicas);
    assert!(shares[1] * 50 <= 6_400, "at most 2 %: {shares:?}");
    assert!(shares[0] * 2 > shares[2] && shares[2] * 2 > shares[0], "equals: {shares:?}");
    assert_eq!(client.stats().servers_avoided, 1);
    replicas[1].takes_us.store(1_000, Ordering::Relaxed);
    let begin = Instant::now();
    loop {
        let before = came(&replicas);
        assert_eq!(load(&client, 8, 20), 0);
        let share = came(&replicas)[1] - before[1];
        if share > 32 {
            break;
        }
        assert!(begin.elapsed() < HANG_GUARD, "{share} of 160 calls");
    }
}

#[test]
fn failing_replica__fails_a_few_calls_until_it_is_avoided() {
    let replicas = [(); 3].map(|()| replica(Duration::ZERO));
    let client = connect(&replicas);
    replicas[2].fails.store(true, Ordering::Relaxed);
    let begin = Instant::now();
    let failed = load(&client, 8, 200);
    assert_eq!(failed, replicas[2].came.load(Ordering::Relaxed));
    // One probe in a second.
    let most = 25 + begin.elapsed().as_secs() as u32;
    assert!((5..=most).contains(&failed), "five in a row, those beside them, and probes: {failed}");
    assert_eq!(client.stats().servers_avoided, 1);
}

/// If all servers fail, the fault is not a server's: half of the servers stay.
#[test]
fn failing_replicas__are_avoided_up_to_the_half() {
    let replicas = [(); 4].map(|()| replica(Duration::ZERO));
    let client = connect(&replicas);
    replicas.iter().for_each(|replica| replica.fails.store(true, Ordering::Relaxed));
    assert_eq!(load(&client, 8, 50), 400);
    assert_eq!(client.stats().servers_avoided, 2);
}
