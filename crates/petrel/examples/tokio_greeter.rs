//! A greeter whose client and server are tasks of tokio: `cargo run --example tokio_greeter`.
//!
//! Petrel does not depend on tokio. A client's calls are futures for any executor, and any task can answer a request
//! that the server's endpoint passes on.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use petrel::endpoint::{EndpointConfig, Stop};
use petrel::workers::WorkerRequest;
use petrel::{Client, Nexus, Status};
use tokio::sync::{Semaphore, oneshot};

type Failure = Box<dyn Error + Send + Sync>;

const GREET: u16 = 1;

/// The limit of simultaneous requests at the server: Petrel does not limit detached requests.
const AT_ONCE: usize = 1000;

#[tokio::main]
pub(crate) async fn main() -> Result<(), Failure> {
    let server = Nexus::builder().listen("127.0.0.1:0".parse()?).start()?;
    let address = server.local_addr().ok_or("the server listens")?;
    let server = serve(server).await?;
    let client = Client::connect(address).await?;

    let names = ["petrel", "albatross", "shearwater"];
    let tasks = names.map(|name| tokio::spawn(greet(client.clone(), name)));
    for task in tasks {
        println!("{}", task.await??);
    }

    // A call with a deadline: the server knows the time left, and the caller is notified in time.
    let call = client.call(GREET, "whom it may concern").timeout(Duration::from_secs(5));
    println!("{}", str::from_utf8(&call.await?)?);

    let error = client.call(GREET, "").await.expect_err("a name is needed");
    println!("{error}");
    server.stop();
    Ok(())
}

async fn greet(client: Client, name: &str) -> Result<String, Failure> {
    let greeting = client.call(GREET, name).await?;
    Ok(String::from_utf8(greeting.into_vec())?)
}

/// Starts the thread of the server's endpoint, whose requests become tasks.
async fn serve(nexus: Nexus) -> Result<Stop, Failure> {
    let tasks = tokio::runtime::Handle::current();
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let (ready, started) = oneshot::channel();
    std::thread::spawn(move || {
        let mut endpoint = nexus.endpoint(EndpointConfig::default()).expect("an endpoint");
        endpoint.on(GREET, move |_, cx, request| {
            let (request, handled) = request.detach(cx);
            match Arc::clone(&places).try_acquire_owned() {
                Ok(place) => drop(tasks.spawn(async move {
                    answer(request).await;
                    drop(place);
                })),
                Err(_) => request.fail(Status::ResourceExhausted, "too many to greet at once"),
            }
            handled
        });
        let stop = endpoint.stop_handle();
        ready.send(stop.clone()).expect("the server is waited for");
        endpoint.run(&stop);
    });
    Ok(started.await?)
}

/// A real server awaits something here: a database, another server.
async fn answer(request: WorkerRequest) {
    tokio::task::yield_now().await;
    let name = String::from_utf8_lossy(request.data()).into_owned();
    match name.is_empty() {
        true => request.fail(Status::InvalidArgument, "who is it?"),
        false => request.reply(format!("Hello, {name}!").as_bytes()),
    }
}
