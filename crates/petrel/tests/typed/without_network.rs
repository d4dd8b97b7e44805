//! Typed calls of `petrel::testing`: their ends, from every kind of thread. The other tests of this program use it, too.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use petrel::client::{Client, ClientConfig};
use petrel::service::{Ctx, Raw};
use petrel::testing::{self, TestServer};
use petrel::workers::{WorkerRequest, Workers};
use petrel::{Context, Error, Execution, Status};

#[petrel::service(name = "test.Ends", codec = Raw)]
trait Ends {
    /// Answers after a time of microseconds.
    async fn after(&self, cx: &Ctx, micros: String) -> Result<String, Error>;
    /// Answers never, and tells of its end.
    async fn never(&self, cx: &Ctx, _: ()) -> Result<(), Error>;
    #[dispatch]
    fn panic(&self, cx: &mut Context<'_>, text: String) -> Result<(), Error>;
    #[worker]
    fn work(&self, cx: &WorkerRequest, text: String) -> Result<String, Error>;
}

struct Handlers {
    ended: Mutex<Sender<()>>,
}

/// Sends a message when it is dropped.
struct Tell(Sender<()>);

impl Drop for Tell {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

impl Ends for Handlers {
    async fn after(&self, cx: &Ctx, micros: String) -> Result<String, Error> {
        let micros =
            micros.parse().map_err(|_| Error::new(Status::InvalidArgument, "no number"))?;
        cx.handle().sleep(Duration::from_micros(micros)).await;
        Ok(format!("after {micros}"))
    }

    async fn never(&self, _: &Ctx, (): ()) -> Result<(), Error> {
        let _tell = Tell(self.ended.lock().unwrap().clone());
        std::future::pending().await
    }

    fn panic(&self, _: &mut Context<'_>, text: String) -> Result<(), Error> {
        panic!("{text}");
    }

    fn work(&self, _: &WorkerRequest, text: String) -> Result<String, Error> {
        Ok(text.to_uppercase())
    }
}

/// Returns a server, its client, and the ends of the calls without an answer.
fn start() -> (TestServer, EndsClient, std::sync::mpsc::Receiver<()>) {
    let (tell, ended) = channel();
    let server = testing::serve(move |endpoint| {
        let workers = Workers::builder().threads(1).start().expect("a worker");
        endpoint.serve(EndsServer::new(Handlers { ended: Mutex::new(tell) }, &workers));
        workers
    });
    let client = EndsClient::new(server.client());
    (server, client, ended)
}

#[test]
fn calls__end_by_deadline_cancellation_and_panic() {
    let (_server, client, ended) = start();
    // A request that the server meets late is not run.
    while ended.try_recv().is_err() {
        let late = client.never(()).timeout(Duration::from_millis(50)).wait().unwrap_err();
        assert_eq!(late.status, Status::DeadlineExceeded);
        // The handler of a request that was run ends before this answer, or at once after it.
        assert_eq!(client.after("1".to_owned()).wait().unwrap(), "after 1");
    }
    let started = client.never(()).started();
    assert_eq!(client.after("1".to_owned()).wait().unwrap(), "after 1");
    drop(started);
    ended.recv().expect("a cancelled call ends its handler");
    let lost = client.panic("for the test".to_owned()).wait().unwrap_err();
    assert_eq!(lost.status, Status::Internal);
    let wrong = client.after("soon".to_owned()).wait().unwrap_err();
    assert_eq!((wrong.status, wrong.execution), (Status::InvalidArgument, Execution::Answered));
    assert_eq!(client.work("after the panic".to_owned()).wait().unwrap(), "AFTER THE PANIC");
}

/// The client remains usable, and says that there is no server any more.
#[test]
fn drop__ends_outstanding_and_later_calls() {
    let (server, client, ended) = start();
    let started = client.never(()).started();
    assert_eq!(client.after("1".to_owned()).wait().unwrap(), "after 1");
    drop(server);
    assert_eq!(started.wait().unwrap_err().status, Status::Unavailable);
    assert_eq!(client.after("1".to_owned()).wait().unwrap_err().status, Status::Unavailable);
    ended.recv().expect("the handler has ended");
}

#[tokio::test]
async fn calls__from_tasks_of_an_executor_of_one_thread() {
    let (_server, client, _ended) = start();
    let calls = (0..100).map(|micros| tokio::spawn(client.after(micros.to_string()).started()));
    for (micros, call) in calls.collect::<Vec<_>>().into_iter().enumerate() {
        assert_eq!(call.await.unwrap().unwrap(), format!("after {micros}"));
    }
}

/// A handler may wait for another server, and calls may have any size.
#[test]
fn servers__in_parallel_and_of_each_other() {
    let large = Arc::new("x".repeat(3 << 20));
    let in_turn = |number: usize| {
        let large = Arc::clone(&large);
        move || {
            let (_inner, inner_client, _ended) = start();
            let outer = testing::serve(move |endpoint| {
                endpoint.on_async(1, move |_, request| {
                    let inner = inner_client.clone();
                    async move {
                        let micros = String::from_utf8_lossy(request.data()).into_owned();
                        inner.after(micros).await
                    }
                });
            });
            for call in 0..20 {
                let micros = (number + call).to_string();
                let reply = outer.client().call(1, &*micros).wait().unwrap();
                assert_eq!(reply, format!("after {micros}").as_bytes());
            }
            let (_other, client, _ended) = start();
            assert_eq!(client.work((*large).clone()).wait().unwrap().len(), large.len());
        }
    };
    let threads: Vec<_> = (0..8).map(|number| thread::spawn(in_turn(number))).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn client__beside_another_with_settings_of_its_own() {
    let (server, _client, _ended) = start();
    let mut config = ClientConfig::default();
    config.timeout = Duration::from_millis(500);
    let builder = Client::builder().config(config).beside(&server.client());
    let client = EndsClient::new(builder.connect_wait(server.address()).unwrap());
    assert_eq!(client.never(()).wait().unwrap_err().status, Status::DeadlineExceeded);
    let elsewhere = Client::builder().beside(&server.client()).connect_wait("192.0.2.9:1");
    assert_eq!(elsewhere.unwrap_err().status, Status::Unavailable);
}

#[test]
#[should_panic(expected = "a service without handlers")]
fn serve__passes_a_panic_of_its_closure_on() {
    let _server = testing::serve(|_| panic!("a service without handlers"));
}
