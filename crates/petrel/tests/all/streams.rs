//! Streams of a server that hands its clients over to the next process.

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use petrel::client::wait;
use petrel::server::start_successor;
use petrel::service::{Ctx, Raw};
use petrel::stream::{Receiver, Sender};
use petrel::{Endpoint, Error, Server, Status};
use rustix::process::Signal;

use crate::server::Process;

/// Names the place of a successor.
const SUCCESSOR: &str = "PETREL_TEST_STREAMS_SUCCESSOR";

/// A test that hangs fails.
const HANG: Duration = Duration::from_secs(60);

/// Streams of each kind under way: enough that batches are in both directions at the hand-over.
const STREAMS: usize = 8;

#[petrel::service(codec = Raw)]
trait Work {
    /// Sends numbers without an end.
    async fn send(&self, cx: &Ctx, out: Sender<String>) -> Result<(), Error>;
    /// Reads up to the end, and returns the number of messages.
    async fn take(&self, cx: &Ctx, messages: Receiver<String>) -> Result<String, Error>;
    /// Returns each message.
    async fn echo(
        &self,
        cx: &Ctx,
        messages: Receiver<String>,
        out: Sender<String>,
    ) -> Result<(), Error>;
    /// Waits.
    async fn idle(&self, cx: &Ctx, out: Sender<String>) -> Result<(), Error>;
}

/// Tells of each handler that begins and that ends.
#[derive(Clone)]
struct Told(Arc<mpsc::Sender<bool>>);

struct Runs<'a>(&'a mpsc::Sender<bool>);

impl Drop for Runs<'_> {
    fn drop(&mut self) {
        self.0.send(false).expect("the test counts the ends");
    }
}

impl Told {
    fn run(&self) -> Runs<'_> {
        self.0.send(true).expect("the test counts the begins");
        Runs(&self.0)
    }
}

impl Work for Told {
    async fn send(&self, _: &Ctx, mut out: Sender<String>) -> Result<(), Error> {
        let _runs = self.run();
        for number in 0.. {
            out.send(format!("{number}")).await?;
        }
        Ok(())
    }

    async fn take(&self, _: &Ctx, mut messages: Receiver<String>) -> Result<String, Error> {
        let _runs = self.run();
        let mut count = 0;
        while let Some(message) = messages.next().await {
            message?;
            count += 1;
        }
        Ok(format!("{count}"))
    }

    async fn echo(
        &self,
        _: &Ctx,
        mut messages: Receiver<String>,
        mut out: Sender<String>,
    ) -> Result<(), Error> {
        let _runs = self.run();
        while let Some(message) = messages.next().await {
            out.send(message?).await?;
        }
        Ok(())
    }

    async fn idle(&self, cx: &Ctx, _out: Sender<String>) -> Result<(), Error> {
        let _runs = self.run();
        cx.handle().sleep(Duration::from_secs(3_600)).await;
        Ok(())
    }
}

fn set_up(told: &Told) -> impl Fn(&mut Endpoint) + Clone + Send + 'static {
    let told = told.clone();
    move |endpoint| endpoint.serve(WorkServer::new(told.clone()))
}

/// Reads a stream up to its end. Returns the errors, and the number of messages, which come in order.
async fn read(mut messages: Receiver<String>) -> (Vec<Status>, usize) {
    let (mut errors, mut count) = (Vec::new(), 0);
    while let Some(message) = messages.next().await {
        match message {
            Ok(text) => {
                assert!(errors.is_empty(), "no message follows an error");
                assert_eq!(text, format!("{count}"));
                count += 1;
            }
            Err(error) => errors.push(error.status),
        }
    }
    (errors, count)
}

/// Sends numbers until the stream ends. Returns why.
async fn write(mut out: Sender<String>) -> Status {
    for number in 0.. {
        if let Err(error) = out.send(format!("{number}")).await {
            return error.status;
        }
    }
    unreachable!("numbers have no end")
}

/// Each stream ends once at both sides with a reason, and the next process serves the streams that follow.
#[test]
fn start_successor__ends_each_stream_once_and_serves_the_next() {
    let test = "streams::start_successor__ends_each_stream_once_and_serves_the_next";
    let (tell, told) = mpsc::channel();
    let handlers = Told(Arc::new(tell));
    if std::env::var_os(SUCCESSOR).is_some() {
        let _told = told;
        Server::inherit_or_bind("127.0.0.1:1").serve(|_| (), set_up(&handlers)).run().unwrap();
        return;
    }
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::listen_on(socket.try_clone().unwrap());
    let server = server.serve(|_| (), set_up(&handlers)).start().unwrap();
    let client = WorkClient::connect_wait(server.local_addr()).unwrap();
    let mut ends = Vec::new();
    for _ in 0..STREAMS {
        let (down, idle) =
            (wait(client.send().start()).unwrap(), wait(client.idle().start()).unwrap());
        let (up, count) = wait(client.take().start()).unwrap();
        let (out, echoed) = wait(client.echo().start()).unwrap();
        for messages in [down, idle, echoed] {
            ends.push(thread::spawn(move || {
                let (errors, _) = wait(read(messages));
                assert_eq!(errors, [Status::Unavailable], "one end, with the reason");
            }));
        }
        for out in [up, out] {
            ends.push(thread::spawn(move || assert_eq!(wait(write(out)), Status::Unavailable)));
        }
        ends.push(thread::spawn(move || {
            assert_eq!(wait(count).unwrap_err().status, Status::Unavailable);
        }));
    }
    let handlers_of = 4 * STREAMS;
    let (mut begun, mut ended) = (0, 0);
    while begun < handlers_of {
        match told.recv_timeout(HANG).expect("a handler begins") {
            true => begun += 1,
            false => panic!("a handler ended before the hand-over"),
        }
    }
    server.stop();
    server.wait().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact"]).env(SUCCESSOR, "1").stdout(Stdio::null());
    let child = start_successor(&mut command, [&socket], b"").unwrap();
    let mut successor = Process { child, address: socket.local_addr().unwrap() };
    ends.into_iter().for_each(|end| end.join().unwrap());
    drop(handlers);
    // The channel ends with the last handler of this process.
    for begins in told {
        assert!(!begins, "no handler begins after the hand-over");
        ended += 1;
    }
    assert_eq!(ended, begun, "each handler ends once");
    wait(async {
        let (mut out, count) = client.take().wait_for_ready().timeout(HANG).start().await.unwrap();
        out.send("a".to_owned()).await.unwrap();
        out.finish();
        assert_eq!(count.await.unwrap(), "1");
    });
    drop(client);
    successor.signal(Signal::TERM);
    assert!(successor.ends_well());
}
