//! A queue with thousands of waiting consumers, some of which are killed: `cargo run --example queue`.
//!
//! A consumer's call waits at the server until there is an item. An item counts as done when the consumer says so: items of a killed consumer
//! go to others.

mod processes;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use petrel::workers::WorkerRequest;
use petrel::{Client, Endpoint, Server};
use processes::{Failure, Process, end_with_parent};

/// Adds an item.
const PUSH: u16 = 1;
/// Waits for an item.
const TAKE: u16 = 2;
/// The item is done.
const DONE: u16 = 3;

/// Consumers of a process.
const CONSUMERS: usize = 1_500;
const ITEMS: u64 = 20_000;

/// Time after which an item that is not done goes to another consumer.
const LEASE: Duration = Duration::from_millis(500);

const LONG: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Queue {
    items: VecDeque<u64>,
    waiting: VecDeque<WorkerRequest>,
    leased: HashMap<u64, Instant>,
    done: Arc<Mutex<HashMap<u64, u32>>>,
}

impl Queue {
    /// Gives items to consumers that still wait.
    fn give(&mut self) {
        while !self.items.is_empty()
            && let Some(consumer) = self.waiting.pop_front()
        {
            if !consumer.is_cancelled()
                && let Some(item) = self.items.pop_front()
            {
                self.leased.insert(item, Instant::now() + LEASE);
                consumer.reply(&item.to_le_bytes());
            }
        }
    }

    /// Takes back the items of consumers that have not said that they are done.
    fn take_back(&mut self) {
        let now = Instant::now();
        let late = self.leased.extract_if(|_, until| *until <= now);
        self.items.extend(late.map(|(item, _)| item));
        self.give();
    }
}

fn main() -> Result<(), Failure> {
    match &std::env::args().collect::<Vec<_>>()[1..] {
        [role, address] if role == "consume" => consume(address),
        _ => produce(),
    }
}

fn set_up(endpoint: &mut Endpoint<Queue>) {
    endpoint.on(PUSH, |queue, cx, request| {
        queue.items.push_back(number(request.data()));
        queue.give();
        request.reply(cx, b"")
    });
    endpoint.on(TAKE, |queue, cx, request| {
        let (consumer, handled) = request.detach(cx);
        queue.waiting.push_back(consumer);
        queue.give();
        handled
    });
    endpoint.on(DONE, |queue, cx, request| {
        let item = number(request.data());
        queue.leased.remove(&item);
        *queue.done.lock().expect("it is whole").entry(item).or_default() += 1;
        request.reply(cx, b"")
    });
    let handle = endpoint.handle();
    let own = handle.clone();
    handle.spawn(async move {
        loop {
            own.sleep(LEASE / 10).await;
            own.with(Queue::take_back);
        }
    });
}

fn produce() -> Result<(), Failure> {
    let done = Arc::<Mutex<HashMap<u64, u32>>>::default();
    let state = Arc::clone(&done);
    let server = Server::bind("127.0.0.1:0")
        .serve(move |_| Queue { done: Arc::clone(&state), ..Queue::default() }, set_up)
        .start()?;
    let address = server.local_addr().to_string();
    let mut consumers = Vec::new();
    for _ in 0..2 {
        consumers.push(Process::start(&["consume", &address])?);
    }
    let client = Client::connect_wait(server.local_addr())?;
    for item in 0..ITEMS {
        client.call(PUSH, item.to_le_bytes()).timeout(LONG).wait()?;
        if item == ITEMS / 2 {
            consumers[0].kill()?;
            println!("{CONSUMERS} of {} consumers are killed", 2 * CONSUMERS);
        }
    }
    while done.lock().expect("it is whole").len() < ITEMS as usize {
        std::thread::sleep(Duration::from_millis(1));
    }
    let twice = done.lock().expect("it is whole").values().filter(|times| **times > 1).count();
    println!("{ITEMS} items are done, {twice} of them twice");
    Ok(())
}

fn consume(address: &str) -> Result<(), Failure> {
    end_with_parent();
    let client = Client::connect_wait(address)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(async {
        let start = |_| tokio::spawn(take_and_do(client.clone()));
        let consumers: Vec<_> = (0..CONSUMERS).map(start).collect();
        for consumer in consumers {
            consumer.await??;
        }
        Ok(())
    })
}

async fn take_and_do(client: Client) -> Result<(), petrel::Error> {
    loop {
        let item = client.call(TAKE, "").timeout(LONG).await?;
        client.call(DONE, &item[..]).timeout(LONG).idempotent().await?;
    }
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("an item has eight bytes"))
}
