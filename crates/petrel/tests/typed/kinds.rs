//! Handlers as tasks, in the event loop, and on workers.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use petrel::service::{Ctx, Raw};
use petrel::task::Handle;
use petrel::workers::{WorkerRequest, Workers};
use petrel::{Client, Context, Error, Execution, Server, Status};

use crate::serve;

#[petrel::service(name = "test.Kinds", codec = Raw)]
trait Kinds {
    /// Waits, and answers with the text in capitals.
    async fn task(&self, cx: &Ctx, text: String) -> Result<String, Error>;
    async fn task_in_place(&self, cx: &Ctx, text: &str) -> Result<String, Error>;
    #[dispatch]
    fn dispatch(&self, cx: &mut Context<'_>, text: String) -> Result<String, Error>;
    #[dispatch]
    #[id(7)]
    fn dispatch_in_place(&self, cx: &mut Context<'_>, text: &str) -> Result<String, Error>;
    #[worker]
    fn worker(&self, cx: &WorkerRequest, text: String) -> Result<String, Error>;
    #[worker]
    #[idempotent]
    fn worker_in_place(&self, cx: &WorkerRequest, bytes: &[u8]) -> Result<Vec<u8>, Error>;
}

#[derive(Default)]
struct Capitals {
    calls: AtomicU32,
}

impl Capitals {
    fn of(&self, text: &str) -> Result<String, Error> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        match text {
            "" => Err(Error::new(Status::NotFound, "no text")),
            _ => Ok(text.to_uppercase()),
        }
    }
}

impl Kinds for Capitals {
    async fn task(&self, cx: &Ctx, text: String) -> Result<String, Error> {
        cx.handle().sleep(Duration::from_micros(1)).await;
        assert!(cx.deadline().is_some() && cx.peer().is_some());
        self.of(&text)
    }

    async fn task_in_place(&self, _: &Ctx, text: &str) -> Result<String, Error> {
        self.of(text)
    }

    fn dispatch(&self, _: &mut Context<'_>, text: String) -> Result<String, Error> {
        self.of(&text)
    }

    fn dispatch_in_place(&self, _: &mut Context<'_>, text: &str) -> Result<String, Error> {
        self.of(text)
    }

    fn worker(&self, cx: &WorkerRequest, text: String) -> Result<String, Error> {
        assert!(!cx.is_cancelled());
        self.of(&text)
    }

    fn worker_in_place(&self, _: &WorkerRequest, bytes: &[u8]) -> Result<Vec<u8>, Error> {
        let text = str::from_utf8(bytes).map_err(|_| Error::new(Status::DataLoss, "no text"))?;
        self.of(text).map(String::into_bytes)
    }
}

/// Makes a call of each method, and returns the replies as text.
fn call_all(client: &KindsClient, text: &str) -> [Result<String, Error>; 6] {
    let owned = text.to_owned();
    let bytes = client.worker_in_place(text.as_bytes()).wait();
    [
        client.task(&owned).timeout(Duration::from_secs(20)).wait(),
        client.task_in_place(text).wait(),
        client.dispatch(owned.clone()).wait(),
        client.dispatch_in_place(text).idempotent().wait(),
        client.worker(owned).wait(),
        bytes.map(|bytes| String::from_utf8(bytes).expect("text")),
    ]
}

#[test]
fn handlers__of_every_kind_share_a_service_and_answer() {
    let service = Arc::new(Capitals::default());
    let kept = Arc::clone(&service);
    let workers = Workers::builder().threads(1).start().expect("workers");
    let (_server, client) = serve(move || KindsServer::shared(Arc::clone(&service), &workers));
    let client = KindsClient::new(client);
    for reply in call_all(&client, "petrel") {
        assert_eq!(reply.unwrap(), "PETREL");
    }
    for reply in call_all(&client, "") {
        let error = reply.unwrap_err();
        assert_eq!((error.status, &*error.message), (Status::NotFound, "no text"));
        assert_eq!(error.execution, Execution::Answered);
    }
    assert_eq!(kept.calls.load(Ordering::Relaxed), 12);
    let long = "tern ".repeat(100_000);
    for reply in call_all(&client, &long) {
        assert_eq!(reply.unwrap(), long.to_uppercase(), "a message of several packets");
    }
    // By number and bytes, as programs in other languages call.
    assert_eq!(client.client().call(7, "raw").wait().unwrap(), b"RAW");
}

/// A client on its endpoint's own thread: the first call of a task is made before the endpoint takes its messages.
#[test]
fn call__by_tasks_of_the_clients_endpoint() {
    let workers = Workers::builder().threads(1).start().expect("workers");
    let make = move || KindsServer::new(Capitals::default(), &workers);
    let server = Server::bind("127.0.0.1:0").serve(|_| (), move |endpoint| endpoint.serve(make()));
    let server = server.start().expect("a server");
    let nexus = petrel::Nexus::builder().start().expect("a nexus");
    let mut endpoint = nexus.endpoint(Default::default()).expect("an endpoint");
    let handle: Handle = endpoint.handle();
    let address = server.local_addr();
    let replies = endpoint.block_on(async move {
        let client: Client = handle.client([address], Default::default());
        let kinds = KindsClient::new(client);
        let first = kinds.task_in_place("one").wait_for_ready().started();
        Ok::<_, Error>((first.await?, kinds.dispatch("two".to_owned()).await?))
    });
    assert_eq!(replies.unwrap(), ("ONE".to_owned(), "TWO".to_owned()));
}

#[test]
fn call__from_many_threads_with_clones() {
    let workers = Workers::builder().threads(2).start().expect("workers");
    let make = move || KindsServer::new(Capitals::default(), &workers);
    let server = Server::bind("127.0.0.1:0").threads(2);
    let server = server.serve(|_| (), move |endpoint| endpoint.serve(make()));
    let server = server.start().expect("a server");
    let client = KindsClient::connect_wait(server.local_addr()).expect("a client");
    let (sender, replies) = mpsc::channel();
    for number in 0..4 {
        let (client, sender) = (client.clone(), sender.clone());
        thread::spawn(move || {
            for call in 0..50 {
                let text = format!("{number} calls {call}");
                let reply = client.task(&text).wait().map(|reply| reply == text.to_uppercase());
                sender.send(reply).expect("the test waits");
            }
        });
    }
    drop(sender);
    let right: Vec<_> = replies.iter().collect();
    assert_eq!((right.len(), right.iter().all(|reply| *reply == Ok(true))), (200, true));
}

#[petrel::service(codec = Raw)]
trait Places {
    #[dispatch]
    fn place(&self, cx: &mut Context<'_>, _: &str) -> Result<String, Error>;
}

struct Thread;

impl Places for Thread {
    fn place(&self, _: &mut Context<'_>, _: &str) -> Result<String, Error> {
        Ok(format!("{:?}", thread::current().id()))
    }
}

/// Also a first call, while the owner is asked for its tables.
#[test]
fn call__with_a_key_goes_to_the_keys_owner() {
    let server = Server::bind("127.0.0.1:0").threads(2);
    let server = server.serve(|_| (), |endpoint| endpoint.serve(PlacesServer::new(Thread)));
    let server = server.start().expect("a server");
    let client = PlacesClient::connect_wait(server.local_addr()).expect("a client");
    let place = |key: u8| client.place("").key([key]).wait().expect("a reply");
    let first: Vec<String> = (0..32).map(place).collect();
    let second: Vec<String> = (0..32).map(place).collect();
    assert_eq!(first, second);
    assert!(first.iter().any(|place| *place != first[0]), "both threads own keys");
}
