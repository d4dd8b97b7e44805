//! The two queues between endpoints and the nexus's thread, in every order of their users.
//!
//! The test includes the library's file, on the model checker's mutexes and atomics. Threads send and close while the
//! reader sleeps. A lost wake-up is a deadlock, which the checker reports; a lost message is missed at the end.

// Some items are unused here.
#![allow(dead_code)]

#[path = "../../../src/nexus/mailbox.rs"]
mod mailbox;

/// Stands in for the file's sibling module in the library.
mod net {
    use std::fmt::Debug;
    use std::io;

    pub(super) trait Wake: Debug {
        fn wake(&self) -> io::Result<()>;
    }

    pub(super) trait Network {
        type Link: Debug;
        type Waker: Wake;
    }

    #[derive(Debug)]
    pub(super) struct MioNetwork;

    impl Network for MioNetwork {
        type Link = ();
        type Waker = super::Bell;
    }
}

mod media {
    pub(super) type Media<L> = Vec<L>;
}

use std::collections::VecDeque;
use std::io;
use std::panic::{self, AssertUnwindSafe};

use petrel::endpoint::EndpointId;
use petrel::unstable::control::{FromNexus, ToNexus};
use petrel_transport::wake::Waker;
use shuttle::scheduler::RandomScheduler;
use shuttle::sync::{Arc, Condvar, Mutex};
use shuttle::{Config, FailurePersistence, Runner, thread};

use mailbox::{Command, Inbox, Mailbox};

/// Executions of each world.
const EXECUTIONS: usize = 2_000;

const SEED: u64 = 20_261_122;

/// Sending threads, and messages per thread.
const SENDERS: u16 = 2;
const MESSAGES: u64 = 3;

/// Remembers a wake-up until a thread has slept, as an eventfd does.
#[derive(Clone, Debug, Default)]
struct Bell(Arc<(Mutex<bool>, Condvar)>);

impl Bell {
    fn ring(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_one();
    }

    fn sleep(&self) {
        let mut rang = self.0.0.lock().unwrap();
        while !*rang {
            rang = self.0.1.wait(rang).unwrap();
        }
        *rang = false;
    }
}

impl net::Wake for Bell {
    fn wake(&self) -> io::Result<()> {
        self.ring();
        Ok(())
    }
}

fn check(world: fn()) {
    let mut config = Config::new();
    config.failure_persistence = FailurePersistence::None;
    let runner = Runner::new(RandomScheduler::new_from_seed(SEED, EXECUTIONS), config);
    let ran = panic::catch_unwind(AssertUnwindSafe(|| runner.run(world)));
    if let Err(failure) = ran {
        eprintln!("again: the same orders follow from the seed {SEED}");
        panic::resume_unwind(failure);
    }
}

#[test]
fn worlds__of_the_mailbox_lose_no_command_and_take_none_after_the_end() {
    check(|| {
        let bell = Bell::default();
        let mailbox: Arc<Mailbox> = Arc::new(Mailbox::new(bell.clone()));
        let senders: Vec<_> = (0..SENDERS)
            .map(|sender| {
                let mailbox = Arc::clone(&mailbox);
                thread::spawn(move || post_all(&mailbox, EndpointId(sender)))
            })
            .collect();
        let closing = Arc::clone(&mailbox);
        let closer = thread::spawn(move || closing.post(Command::Shutdown).is_ok());
        let received = run_reactor(&mailbox, &bell);
        assert!(closer.join().unwrap(), "the thread has ended before it was told to");
        for (sender, thread) in (0..SENDERS).zip(senders) {
            let accepted: Vec<u64> = (0..thread.join().unwrap()).collect();
            let of_it = received.iter().filter(|(from, _)| *from == EndpointId(sender));
            let numbers: Vec<u64> = of_it.map(|&(_, number)| number).collect();
            assert_eq!(numbers, accepted, "what was accepted comes once, in order");
        }
    });
}

/// Posts all messages of a sender. Returns how many were accepted: the first ones.
fn post_all(mailbox: &Mailbox, sender: EndpointId) -> u64 {
    let mut accepted = 0;
    for number in 0..MESSAGES {
        let message = ToNexus::Stats { request: number, json: String::new() };
        match mailbox.post(Command::Post(sender, message)) {
            Ok(()) => {
                assert_eq!(accepted, number, "a command is accepted after the end");
                accepted += 1;
            }
            Err(Command::Post(from, ToNexus::Stats { request, .. })) => {
                assert_eq!((from, request), (sender, number), "another command comes back");
            }
            Err(other) => panic!("another command comes back: {other:?}"),
        }
    }
    accepted
}

/// The nexus's thread: takes commands until its shutdown, and sleeps in between.
fn run_reactor(mailbox: &Mailbox, bell: &Bell) -> Vec<(EndpointId, u64)> {
    let mut received = Vec::new();
    let mut note = |commands: VecDeque<Command<()>>| {
        let mut is_over = false;
        for command in commands {
            match command {
                Command::Post(from, ToNexus::Stats { request, .. }) => {
                    received.push((from, request))
                }
                Command::Shutdown => is_over = true,
                other => panic!("nobody has sent {other:?}"),
            }
        }
        is_over
    };
    while !note(mailbox.take()) {
        bell.sleep();
    }
    note(mailbox.close());
    received
}

#[test]
fn worlds__of_the_inbox_lose_no_message() {
    check(|| {
        let bell = Bell::default();
        let ring = bell.clone();
        let waker = Waker::with_bell(move || ring.ring()).unwrap();
        let inbox: Arc<Inbox<()>> = Arc::new(Inbox::new(waker));
        let senders: Vec<_> = (0..u64::from(SENDERS))
            .map(|sender| {
                let inbox = Arc::clone(&inbox);
                thread::spawn(move || {
                    let requests = (0..MESSAGES).map(|number| sender * MESSAGES + number);
                    requests.for_each(|request| inbox.push(FromNexus::StatsRequested { request }));
                })
            })
            .collect();
        let all = u64::from(SENDERS) * MESSAGES;
        let mut received = Vec::new();
        while (received.len() as u64) < all {
            match inbox.pop() {
                Some(FromNexus::StatsRequested { request }) => received.push(request),
                Some(other) => panic!("nobody has sent {other:?}"),
                None => bell.sleep(),
            }
        }
        assert!(inbox.pop().is_none() && inbox.len() == 0);
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        for sender in 0..u64::from(SENDERS) {
            let of_it = received.iter().copied().filter(|request| request / MESSAGES == sender);
            assert!(of_it.eq(sender * MESSAGES..(sender + 1) * MESSAGES), "in order: {received:?}");
        }
    });
}
