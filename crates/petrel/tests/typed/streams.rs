//! Methods with streams, over all media: messages, ends, cancellation, deadlines.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use petrel::client::wait;
use petrel::endpoint::{AllowedTransports, EndpointConfig};
use petrel::server::RunningServer;
use petrel::service::{
    ClientInterceptor, Ctx, Decode, Encode, IncomingCall, Malformed, OutgoingCall, Raw,
    ServerInterceptor,
};
use petrel::stream::{Receiver, Sender};
use petrel::{Client, Error, Execution, Server, Status};

#[petrel::service(codec = Raw)]
trait Words {
    /// Sends the words of a text.
    async fn split(&self, cx: &Ctx, text: String, words: Sender<String>) -> Result<(), Error>;
    /// Joins words with a text.
    async fn join(&self, cx: &Ctx, with: String, words: Receiver<String>) -> Result<String, Error>;
    /// Returns the words as they come.
    async fn echo(
        &self,
        cx: &Ctx,
        words: Receiver<Vec<u8>>,
        echoed: Sender<Vec<u8>>,
    ) -> Result<(), Error>;
    /// Sends nothing, and waits.
    async fn idle(&self, cx: &Ctx, text: String, words: Sender<String>) -> Result<(), Error>;
    async fn name(&self, cx: &Ctx, request: ()) -> Result<String, Error>;
}

/// Counts the handlers that run.
#[derive(Clone, Default)]
struct Plain(Arc<AtomicUsize>);

struct Runs<'a>(&'a AtomicUsize);

impl Drop for Runs<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Plain {
    fn run(&self) -> Runs<'_> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Runs(&self.0)
    }
}

impl Words for Plain {
    async fn split(&self, cx: &Ctx, text: String, mut words: Sender<String>) -> Result<(), Error> {
        assert!(cx.peer().is_some());
        if text == "flood" {
            while words.try_send("x".repeat(1_000)).is_ok() {}
            let error = Error::new(Status::Aborted, "too slow").with_detail_bytes("why", b"flood");
            words.reset(&error);
            return Err(Error::new(Status::Internal, "the stream is over"));
        }
        for word in text.split(' ') {
            if word == "stop" {
                return Err(Error::new(Status::OutOfRange, "a word that stops"));
            }
            words.send(word.to_owned()).await?;
        }
        Ok(())
    }

    async fn join(
        &self,
        _: &Ctx,
        with: String,
        mut words: Receiver<String>,
    ) -> Result<String, Error> {
        let mut all = Vec::new();
        while let Some(word) = words.next().await {
            all.push(word?);
        }
        Ok(all.join(&with))
    }

    async fn echo(
        &self,
        _: &Ctx,
        mut words: Receiver<Vec<u8>>,
        mut echoed: Sender<Vec<u8>>,
    ) -> Result<(), Error> {
        while let Some(word) = words.next().await {
            echoed.send(word?).await?;
        }
        Ok(())
    }

    async fn idle(&self, cx: &Ctx, text: String, _words: Sender<String>) -> Result<(), Error> {
        let _runs = self.run();
        assert!(text != "panic", "as it is asked to");
        cx.handle().sleep(Duration::from_secs(3_600)).await;
        Ok(())
    }

    async fn name(&self, _: &Ctx, (): ()) -> Result<String, Error> {
        Ok("plain".to_owned())
    }
}

fn serve_over(transports: AllowedTransports) -> (RunningServer, WordsClient, Plain) {
    let plain = Plain::default();
    let served = plain.clone();
    let set_up =
        move |endpoint: &mut petrel::Endpoint| endpoint.serve(WordsServer::new(served.clone()));
    let server = Server::bind("127.0.0.1:0").transports(transports).serve(|_| (), set_up);
    let server = server.start().expect("a server");
    let client = Client::builder().transports(transports).connect_wait(server.local_addr());
    let client = client.expect("a client");
    (server, WordsClient::new(client), plain)
}

fn media() -> [AllowedTransports; 3] {
    let none = AllowedTransports { udp: false, shm: false, stream: false, verbs: false };
    [
        AllowedTransports { udp: true, ..none },
        AllowedTransports { shm: true, ..none },
        AllowedTransports { stream: true, ..none },
    ]
}

#[test]
fn streams__of_all_kinds_over_all_media() {
    for transports in media() {
        let (_server, client, _) = serve_over(transports);
        wait(async {
            let mut words = client.split(String::from("a stream of words")).start().await.unwrap();
            let mut all = Vec::new();
            while let Some(word) = words.next().await {
                all.push(word.unwrap());
            }
            assert_eq!(all, ["a", "stream", "of", "words"]);

            let mut words = client.split(String::from("a stop")).await.unwrap();
            assert_eq!(words.next().await.unwrap().unwrap(), "a");
            let error = words.next().await.unwrap().unwrap_err();
            assert_eq!((error.status, error.execution), (Status::OutOfRange, Execution::Answered));
            assert!(words.next().await.is_none());

            let (mut words, text) = client.join("-".to_owned()).start().await.unwrap();
            for word in ["one", "two", "three"] {
                words.send(word.to_owned()).await.unwrap();
            }
            drop(words);
            assert_eq!(text.await.unwrap(), "one-two-three");

            let (mut words, mut echoed) = client.echo().start().await.unwrap();
            for size in [0, 5, 70_000, 1_000_000] {
                words.send_bytes(&vec![size as u8; size]).await.unwrap();
                assert_eq!(echoed.next().await.unwrap().unwrap(), vec![size as u8; size]);
            }
            words.finish();
            assert!(echoed.next().await.is_none());
            assert_eq!(client.name(()).await.unwrap(), "plain");
        });
    }
}

#[test]
fn many_messages__of_several_streams_at_once() {
    for transports in media() {
        let (_server, client, _) = serve_over(transports);
        let threads: Vec<_> = (0..3_u8)
            .map(|fill| {
                let client = client.clone();
                std::thread::spawn(move || {
                    wait(async {
                        let (mut words, mut echoed) = client.echo().start().await.unwrap();
                        let send = async {
                            for number in 0..20_000_u32 {
                                let size = if number % 1_000 == 0 { 100_000 } else { 32 };
                                words.send(vec![fill ^ number as u8; size]).await.unwrap();
                            }
                            words.finish();
                        };
                        let receive = async {
                            for number in 0..20_000_u32 {
                                let size = if number % 1_000 == 0 { 100_000 } else { 32 };
                                let word = echoed.next().await.unwrap().unwrap();
                                assert_eq!(word, vec![fill ^ number as u8; size]);
                            }
                            assert!(echoed.next().await.is_none());
                        };
                        futures_util::future::join(send, receive).await;
                    });
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..5_000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("{what} has not come");
}

#[test]
fn a_stream__that_is_dropped_or_late_ends_its_handler() {
    let (_server, client, plain) = serve_over(AllowedTransports::ALL);
    let runs = || plain.0.load(Ordering::SeqCst);
    let words = client.idle("a".to_owned()).start_wait().unwrap();
    wait_for("the handler", || runs() == 1);
    drop(words);
    wait_for("the end of the handler", || runs() == 0);

    let late = client.idle("b".to_owned()).timeout(Duration::from_secs(1));
    let mut late = late.start_wait().unwrap();
    let error = wait(late.next()).unwrap().unwrap_err();
    assert_eq!(error.status, Status::DeadlineExceeded);
    wait_for("the end of the late handler", || runs() == 0);

    let mut panics = client.idle("panic".to_owned()).start_wait().unwrap();
    assert_eq!(wait(panics.next()).unwrap().unwrap_err().status, Status::Internal);
}

#[test]
fn a_handler__that_resets_its_stream_ends_it_at_once_with_its_error() {
    let (_server, client, _) = serve_over(AllowedTransports::UDP);
    wait(async {
        let mut words = client.split(String::from("flood")).start().await.unwrap();
        let error = loop {
            match words.next().await.expect("an error") {
                Ok(word) => assert_eq!(word.len(), 1_000),
                Err(error) => break error,
            }
        };
        assert_eq!((error.status, &*error.message), (Status::Aborted, "too slow"));
        let details: Vec<_> = error.details().map(|one| (one.name, one.value)).collect();
        assert_eq!(details, [("why", &b"flood"[..])]);
        assert!(words.next().await.is_none());
    });
}

#[test]
fn a_server__that_stops_ends_its_streams() {
    let (server, client, plain) = serve_over(AllowedTransports::ALL);
    let mut words = client.idle("a".to_owned()).start_wait().unwrap();
    wait_for("the handler", || plain.0.load(Ordering::SeqCst) == 1);
    server.stop();
    let error = wait(words.next()).unwrap().unwrap_err();
    assert_eq!(error.status, Status::Unavailable);
    wait_for("the end of the handler", || plain.0.load(Ordering::SeqCst) == 0);
    let error = client.idle("a".to_owned()).start_wait().unwrap_err();
    assert_eq!(error.status, Status::Unavailable);
}

#[test]
fn a_client__that_goes_ends_its_handlers() {
    let (_server, client, plain) = serve_over(AllowedTransports::ALL);
    let words = client.idle("a".to_owned()).start_wait().unwrap();
    wait_for("the handler", || plain.0.load(Ordering::SeqCst) == 1);
    drop(client);
    assert_eq!(plain.0.load(Ordering::SeqCst), 1, "the stream goes on");
    drop(words);
    wait_for("the end of the handler", || plain.0.load(Ordering::SeqCst) == 0);
}

#[petrel::service(codec = Raw)]
trait Names {
    /// Returns the caller's answer.
    async fn called(&self, cx: &Ctx, request: ()) -> Result<String, Error>;
    /// Returns the caller's answer to each word.
    async fn ask(
        &self,
        cx: &Ctx,
        words: Receiver<String>,
        answers: Sender<String>,
    ) -> Result<(), Error>;
}

#[petrel::service(codec = Raw)]
trait Answers {
    async fn answer(&self, cx: &Ctx, word: String) -> Result<String, Error>;
}

impl Names for Plain {
    async fn called(&self, cx: &Ctx, (): ()) -> Result<String, Error> {
        AnswersClient::new(cx.caller()?).answer("a call".to_owned()).await
    }

    async fn ask(
        &self,
        cx: &Ctx,
        mut words: Receiver<String>,
        mut answers: Sender<String>,
    ) -> Result<(), Error> {
        let caller = AnswersClient::new(cx.caller()?);
        while let Some(word) = words.next().await {
            answers.send(caller.answer(word?).await?).await?;
        }
        Ok(())
    }
}

impl Answers for Plain {
    async fn answer(&self, _: &Ctx, word: String) -> Result<String, Error> {
        Ok(format!("{word} {}", self.0.fetch_add(1, Ordering::SeqCst)))
    }
}

/// The callbacks are those of the client's calls, with their state.
#[test]
fn the_caller_of_a_stream__answers_by_the_callbacks_of_its_client() {
    for transports in media() {
        let set_up =
            |endpoint: &mut petrel::Endpoint| endpoint.serve(NamesServer::new(Plain::default()));
        let server = Server::bind("127.0.0.1:0").transports(transports).serve(|_| (), set_up);
        let server = server.start().expect("a server");
        let client = Client::builder().transports(transports);
        let none = NamesClient::new(client.clone().connect_wait(server.local_addr()).unwrap());
        let answers = Plain::default();
        let client =
            client.serve(move |callbacks| callbacks.serve(AnswersServer::new(answers.clone())));
        let client = NamesClient::new(client.connect_wait(server.local_addr()).unwrap());
        wait(async {
            let (mut words, mut answers) = client.ask().start().await.unwrap();
            words.send("a stream".to_owned()).await.unwrap();
            assert_eq!(answers.next().await.unwrap().unwrap(), "a stream 0");
            assert_eq!(client.called(()).await.unwrap(), "a call 1");
            words.finish();
            assert!(answers.next().await.is_none());

            let (mut words, mut answers) = none.ask().start().await.unwrap();
            words.send("a stream".to_owned()).await.unwrap();
            let error = answers.next().await.unwrap().unwrap_err();
            assert_eq!(error.status, Status::Unimplemented, "{error}");
        });
    }
}

/// A codec of numbers alone.
struct Words64;

impl Encode<u64> for Words64 {
    const NAME: &'static str = "words64";

    fn len(_: &u64) -> usize {
        8
    }

    fn encode(number: &u64, out: &mut [u8]) {
        out.copy_from_slice(&number.to_le_bytes());
    }
}

impl Decode<u64> for Words64 {
    fn decode(bytes: &[u8]) -> Result<u64, Malformed> {
        bytes.try_into().map(u64::from_le_bytes).map_err(Malformed::new)
    }
}

#[petrel::service(codec = Words64)]
trait Sums {
    async fn sum(&self, cx: &Ctx, numbers: Receiver<u64>) -> Result<u64, Error>;
    async fn below(&self, cx: &Ctx, end: u64, numbers: Sender<u64>) -> Result<(), Error>;
}

impl Sums for Plain {
    async fn sum(&self, _: &Ctx, mut numbers: Receiver<u64>) -> Result<u64, Error> {
        let mut sum = 0;
        while let Some(number) = numbers.next().await {
            sum += number?;
        }
        Ok(sum)
    }

    async fn below(&self, _: &Ctx, end: u64, mut numbers: Sender<u64>) -> Result<(), Error> {
        for number in 0..end {
            numbers.send(number).await?;
        }
        Ok(())
    }
}

/// A method without a request, or without a stream of one side, needs no codec for the absent messages.
#[test]
fn a_codec__of_a_single_type_is_enough() {
    let server =
        petrel::testing::serve(|endpoint| endpoint.serve(SumsServer::new(Plain::default())));
    let client = SumsClient::new(server.client());
    wait(async {
        let mut numbers = client.below(5).start().await.unwrap();
        let (mut out, sum) = client.sum().start().await.unwrap();
        while let Some(number) = numbers.next().await {
            out.send(number.unwrap()).await.unwrap();
        }
        out.finish();
        assert_eq!(sum.await.unwrap(), 10);
    });
}

#[petrel::service(codec = Raw)]
trait Hoard {
    /// Reads none of the things, and waits.
    async fn keep(&self, cx: &Ctx, things: Receiver<Vec<u8>>) -> Result<String, Error>;
}

impl Hoard for Plain {
    async fn keep(&self, cx: &Ctx, _things: Receiver<Vec<u8>>) -> Result<String, Error> {
        cx.handle().sleep(Duration::from_secs(3_600)).await;
        Ok(String::new())
    }
}

/// A client has one window here, and all clients four.
#[test]
fn streams__that_are_not_read_take_bounded_memory() {
    let mut config = EndpointConfig::default();
    config.streams.held_bytes_max = config.streams.window_bytes;
    let server = Server::bind("127.0.0.1:0").endpoint(config).serve(
        |_| (),
        |endpoint| {
            endpoint.serve(HoardServer::new(Plain::default()));
            endpoint.serve(WordsServer::new(Plain::default()));
        },
    );
    let server = server.start().expect("a server");
    let address = server.local_addr();
    let (ended, ends) = mpsc::channel();
    let _hoarders: Vec<_> = (0..12)
        .map(|_| {
            let client = HoardClient::connect_wait(address).expect("a client");
            let (mut things, kept) = wait(client.keep().start()).expect("a stream");
            while things.try_send(vec![7; 8_000]).is_ok() {}
            let ended = ended.clone();
            thread::spawn(move || ended.send(wait(kept).unwrap_err()));
            (client, things)
        })
        .collect();
    // Twelve windows came at most, and those of eight clients had to go but for what came between two counts.
    for _ in 0..6 {
        let error = ends.recv_timeout(Duration::from_secs(60)).expect("a client that gives way");
        assert_eq!(error.status, Status::ResourceExhausted, "{error}");
    }
    let honest = WordsClient::connect_wait(address).expect("a client");
    wait(async {
        let (mut words, joined) = honest.join("-".to_owned()).start().await.unwrap();
        words.send("a".to_owned()).await.unwrap();
        words.send("b".to_owned()).await.unwrap();
        words.finish();
        assert_eq!(joined.await.unwrap(), "a-b", "others go on");
    });
}

/// Refuses a method.
#[derive(Clone)]
struct Closed(&'static str);

impl ServerInterceptor for Closed {
    fn before(&self, call: &IncomingCall<'_>) -> Result<(), Error> {
        match call.method() == self.0 {
            true => Err(Error::new(Status::PermissionDenied, "closed")),
            false => Ok(()),
        }
    }
}

impl ClientInterceptor for Closed {
    fn before(&self, call: &mut OutgoingCall<'_>) -> Result<(), Error> {
        match call.method() == self.0 {
            true => Err(Error::new(Status::FailedPrecondition, "no")),
            false => Ok(()),
        }
    }
}

#[test]
fn interceptors__stand_before_streams() {
    let plain = Plain::default();
    let served = plain.clone();
    let server = petrel::testing::serve(move |endpoint| {
        endpoint.serve(WordsServer::new(served).with(Closed("Words/Idle")));
    });
    let client = WordsClient::new(server.client());
    let first = |client: &WordsClient<_>| {
        let call = client.idle("runs".to_owned());
        wait(async { call.start().await?.next().await.expect("an end").map(drop) })
    };
    let error = first(&client.clone().with(Closed("Words/Split"))).unwrap_err();
    assert_eq!((error.status, error.message.as_str()), (Status::PermissionDenied, "closed"));
    assert_eq!(plain.0.load(Ordering::SeqCst), 0, "the handler does not run");
    let error = first(&client.clone().with(Closed("Words/Idle"))).unwrap_err();
    assert_eq!((error.status, error.execution), (Status::FailedPrecondition, Execution::NotSent));
    let words =
        wait(async { client.split(String::from("a b")).start().await?.next().await.unwrap() });
    assert_eq!(words.unwrap(), "a", "other methods are open");
}
