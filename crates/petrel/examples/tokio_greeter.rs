//! A greeter whose client and server are tasks of tokio: `cargo run --example tokio_greeter`.
//!
//! Petrel knows nothing of tokio. Each endpoint has a thread of its own, which runs its event loop;
//! a client handle starts calls from any task, and a request that is passed on is answered by any.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use petrel::{CallOptions, Client, EndpointConfig, Nexus, Status, Stop, WorkerRequest};
use tokio::sync::{Semaphore, oneshot};

type Failure = Box<dyn Error + Send + Sync>;

const GREET: u16 = 1;

/// Requests that the server has in hand at once: Petrel does not limit those that are passed on.
const AT_ONCE: usize = 1000;

#[tokio::main]
pub(crate) async fn main() -> Result<(), Failure> {
    let server = Nexus::builder().listen("127.0.0.1:0".parse()?).start()?;
    let address = server.local_addr().ok_or("the server listens")?;
    let server = serve(server).await?;
    let (client, endpoint) = connect(address).await?;

    let names = ["petrel", "albatross", "shearwater"];
    let tasks = names.map(|name| tokio::spawn(greet(client.clone(), name)));
    for task in tasks {
        println!("{}", task.await??);
    }

    // A call with a deadline: its server knows what is left, and the caller hears in time.
    let options = CallOptions::new().timeout(Duration::from_secs(5));
    let greeting = client.call_with(GREET, "whom it may concern", 100, options).await?;
    println!("{}", String::from_utf8(greeting)?);

    let failure = client.call(GREET, "", 100).await.expect_err("nobody has no name");
    println!("{failure}");
    endpoint.stop();
    server.stop();
    Ok(())
}

async fn greet(client: Client, name: &str) -> Result<String, Failure> {
    let greeting = client.call(GREET, name, 100).await?;
    Ok(String::from_utf8(greeting)?)
}

/// Starts the thread of the server's endpoint, whose requests become tasks.
async fn serve(nexus: Nexus) -> Result<Stop, Failure> {
    let tasks = tokio::runtime::Handle::current();
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let (ready, started) = oneshot::channel();
    std::thread::spawn(move || {
        let mut endpoint = nexus.endpoint(EndpointConfig::default()).expect("an endpoint");
        endpoint.register_remote(GREET, move |request| {
            match Arc::clone(&places).try_acquire_owned() {
                Ok(place) => drop(tasks.spawn(async move {
                    answer(request).await;
                    drop(place);
                })),
                Err(_) => request.fail(Status::ResourceExhausted, "too many to greet at once"),
            }
        });
        let stop = endpoint.stop_handle();
        ready.send(stop.clone()).expect("the server is waited for");
        endpoint.run(&stop);
    });
    Ok(started.await?)
}

/// What a real server does here awaits something: a database, another server.
async fn answer(request: WorkerRequest) {
    tokio::task::yield_now().await;
    let name = String::from_utf8_lossy(request.data()).into_owned();
    match name.is_empty() {
        true => request.fail(Status::InvalidArgument, "who is it?"),
        false => request.reply(format!("Hello, {name}!").as_bytes()),
    }
}

/// Starts the thread of the client's endpoint, and gets a handle for all tasks.
async fn connect(server: SocketAddr) -> Result<(Client, Stop), Failure> {
    let (ready, started) = oneshot::channel();
    std::thread::spawn(move || {
        let nexus = Nexus::builder().start().expect("a nexus");
        let mut endpoint = nexus.endpoint(EndpointConfig::default()).expect("an endpoint");
        let session = match endpoint.connect_wait(server) {
            Ok(session) => session,
            Err(error) => return drop(ready.send(Err(error.to_string()))),
        };
        let stop = endpoint.stop_handle();
        let handle = (endpoint.client(session), stop.clone());
        ready.send(Ok(handle)).expect("the client is waited for");
        endpoint.run(&stop);
    });
    Ok(started.await??)
}
