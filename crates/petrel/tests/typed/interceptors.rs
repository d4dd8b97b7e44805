//! Interceptors of clients and servers, and layers of tower.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use petrel::service::{
    CallEnd, ClientInterceptor, Ctx, IncomingCall, OutgoingCall, Raw, ServerInterceptor,
    TowerMethod,
};
use petrel::workers::{WorkerRequest, Workers};
use petrel::{Context, Error, Execution, Server, Status};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};

use crate::serve;

#[petrel::service(name = "test.Words", codec = Raw)]
trait Words {
    async fn task(&self, cx: &Ctx, word: String) -> Result<String, Error>;
    async fn task_in_place(&self, cx: &Ctx, word: &str) -> Result<String, Error>;
    #[dispatch]
    fn dispatch(&self, cx: &mut Context<'_>, word: String) -> Result<String, Error>;
    #[dispatch]
    #[idempotent]
    fn dispatch_in_place(&self, cx: &mut Context<'_>, word: &str) -> Result<String, Error>;
    #[worker]
    fn worker(&self, cx: &WorkerRequest, word: String) -> Result<String, Error>;
}

struct Echo;

impl Echo {
    fn of(word: &str) -> Result<String, Error> {
        match word {
            "none" => Err(Error::new(Status::NotFound, "no word")),
            "panic" => panic!("planted"),
            _ => Ok(word.to_owned()),
        }
    }
}

impl Words for Echo {
    async fn task(&self, cx: &Ctx, word: String) -> Result<String, Error> {
        if word == "forever" {
            cx.handle().sleep(Duration::from_secs(3_600)).await;
        }
        Self::of(&word)
    }

    async fn task_in_place(&self, _: &Ctx, word: &str) -> Result<String, Error> {
        Self::of(word)
    }

    fn dispatch(&self, _: &mut Context<'_>, word: String) -> Result<String, Error> {
        Self::of(&word)
    }

    fn dispatch_in_place(&self, _: &mut Context<'_>, word: &str) -> Result<String, Error> {
        Self::of(word)
    }

    fn worker(&self, _: &WorkerRequest, word: String) -> Result<String, Error> {
        Self::of(&word)
    }
}

/// Lines of the interceptors, in their order.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    fn add(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// Writes a line before and after each call, with its name.
#[derive(Clone)]
struct Log(&'static str, Lines);

impl ClientInterceptor for Log {
    fn before(&self, call: &mut OutgoingCall<'_>) -> Result<(), Error> {
        self.1.add(format!("{} begins {}", self.0, call.method()));
        call.metadata().insert(self.0, "seen")
    }

    fn after(&self, call: &OutgoingCall<'_>, end: &CallEnd<'_>) {
        assert!(end.duration() < Duration::from_secs(600));
        assert_eq!(call.sent_metadata().get(self.0), Some("seen"));
        self.1.add(format!("{} ends {}", self.0, end.status()));
    }
}

impl ServerInterceptor for Log {
    fn before(&self, call: &IncomingCall<'_>) -> Result<(), Error> {
        assert!(call.peer().is_some() && call.deadline().is_some());
        self.1.add(format!("{} begins {}", self.0, call.method()));
        Ok(())
    }

    fn after(&self, call: &IncomingCall<'_>, end: &CallEnd<'_>) {
        call.reply_metadata("status", end.status().name()).unwrap();
        self.1.add(format!("{} ends {}", self.0, end.status()));
    }
}

/// Demands a token.
#[derive(Clone)]
struct Token;

impl ServerInterceptor for Token {
    fn before(&self, call: &IncomingCall<'_>) -> Result<(), Error> {
        match call.metadata().get("token") {
            Some("open sesame") => Ok(()),
            _ => Err(Error::new(Status::Unauthenticated, "no token that is known here")),
        }
    }
}

/// Refuses calls at the client.
#[derive(Clone)]
struct Refuse;

impl ClientInterceptor for Refuse {
    fn before(&self, call: &mut OutgoingCall<'_>) -> Result<(), Error> {
        assert_eq!((call.timeout(), call.deadline()), (Some(Duration::from_secs(9)), None));
        Err(Error::new(Status::PermissionDenied, "not now"))
    }
}

const WORDS: [&str; 3] = ["tern", "none", "panic"];

#[test]
fn interceptors__run_in_order_around_every_kind_of_handler() {
    let lines = Lines::default();
    let (own, workers) = (lines.clone(), Workers::builder().threads(1).start().expect("workers"));
    let make = move || {
        let server = WordsServer::new(Echo, &workers);
        server.with(Log("outer", own.clone())).with(Token).with(Log("inner", own.clone()))
    };
    let (_server, client) = serve(make);
    let client = WordsClient::new(client);
    let lines_of = |end: &str, method: &str| {
        let begin = |name: &str| format!("{name} begins test.Words/{method}");
        vec![
            begin("outer"),
            begin("inner"),
            format!("inner ends {end}"),
            format!("outer ends {end}"),
        ]
    };
    for (word, end) in WORDS.into_iter().zip(["OK", "NOT_FOUND", "INTERNAL"]) {
        let owned = word.to_owned();
        let calls = [
            (client.task(&owned), "Task"),
            (client.task_in_place(word), "TaskInPlace"),
            (client.dispatch(&owned), "Dispatch"),
            (client.dispatch_in_place(word), "DispatchInPlace"),
            (client.worker(&owned), "Worker"),
        ];
        for (call, method) in calls {
            let call = call.timeout(Duration::from_secs(20)).metadata("token", "open sesame");
            match call.with_reply_metadata().wait() {
                Ok((reply, metadata)) => {
                    assert_eq!((&*reply, metadata.get("status")), (word, Some("OK")));
                }
                Err(error) => assert_eq!(error.status.name(), end, "{error}"),
            }
            assert_eq!(lines.take(), lines_of(end, method));
        }
    }
    // Refused by the second interceptor, with and without metadata: the first has seen the call, and no handler has.
    let call = || client.dispatch("panic".to_owned()).timeout(Duration::from_secs(20));
    for token in [None, Some("guessed")] {
        let outcome = match token {
            None => call().wait(),
            Some(token) => call().metadata("token", token).wait(),
        };
        assert_eq!(outcome.unwrap_err().status, Status::Unauthenticated);
        let ended = ["outer begins test.Words/Dispatch", "outer ends UNAUTHENTICATED"];
        assert_eq!(lines.take(), ended);
    }
}

#[test]
fn interceptors__of_a_client_see_the_end_once() {
    let workers = Workers::builder().threads(1).start().expect("workers");
    let (_server, client) = serve(move || WordsServer::new(Echo, &workers));
    let lines = Lines::default();
    let words = WordsClient::new(client.clone());
    let words = words.with(Log("first", lines.clone())).with(Log("second", lines.clone()));
    let ended = |end: &str| {
        let begin = |name: &str| format!("{name} begins test.Words/Task");
        [begin("first"), begin("second"), format!("second ends {end}"), format!("first ends {end}")]
    };
    assert_eq!(words.task("tern".to_owned()).wait().unwrap(), "tern");
    assert_eq!(lines.take(), ended("OK"));
    words.task("none".to_owned()).started().wait().unwrap_err();
    assert_eq!(lines.take(), ended("NOT_FOUND"));
    drop(words.task("forever".to_owned()).started());
    assert_eq!(lines.take(), ended("CANCELLED"));
    drop(words.task("never begun".to_owned()));
    words.task("tern".to_owned()).metadata("No Key", "x").wait().unwrap_err();
    assert_eq!(lines.take(), [""; 0]);
    words.task("tern".to_owned()).detach();
    assert_eq!(lines.take().len(), 2);
    let refusing = words.with(Refuse);
    let call = refusing.task("tern".to_owned()).timeout(Duration::from_secs(9));
    let error = call.wait().unwrap_err();
    let expected = (Status::PermissionDenied, Execution::NotSent);
    assert_eq!((error.status, error.execution), expected);
    assert_eq!(lines.take(), ended("PERMISSION_DENIED"));
    assert!(format!("{refusing:?}").ends_with(" of test.Words"));
}

/// The task of a handler is dropped when its caller gives up.
#[test]
fn interceptors__of_a_server_see_a_cancelled_call() {
    let lines = Lines::default();
    let (own, workers) = (lines.clone(), Workers::builder().threads(1).start().expect("workers"));
    let (_server, client) =
        serve(move || WordsServer::new(Echo, &workers).with(Log("log", own.clone())));
    let client = WordsClient::new(client);
    let call = client.task("forever".to_owned()).timeout(Duration::from_secs(600)).started();
    let wait_for = |count: usize| {
        while lines.0.lock().unwrap().len() < count {
            std::thread::yield_now();
        }
    };
    wait_for(1);
    drop(call);
    wait_for(2);
    assert_eq!(lines.take(), ["log begins test.Words/Task", "log ends CANCELLED"]);
}

#[tokio::test]
async fn tower__layers_around_a_typed_and_a_raw_client() {
    let workers = Workers::builder().threads(1).start().expect("workers");
    let server = Server::bind("127.0.0.1:0");
    let serve = move |endpoint: &mut petrel::Endpoint<()>| {
        endpoint.serve(WordsServer::new(Echo, &workers));
        endpoint.on(9, |(), cx, request| request.reply(cx, b"raw"));
    };
    let server = server.serve(|_| (), serve).start().expect("a server");
    let client = WordsClient::connect(server.local_addr()).await.expect("a client");
    let calls = client.clone();
    let method = TowerMethod::new(move |word: String| calls.task(word).metadata("tenant", "a"));
    let layers = |timeout| ServiceBuilder::new().concurrency_limit(1).timeout(timeout);
    let long = Duration::from_secs(60);
    let mut words = layers(long).service(method.clone());
    let reply: String = words.ready().await.unwrap().call("tern".to_owned()).await.unwrap();
    assert_eq!(reply, "tern");
    let error: BoxError = words.ready().await.unwrap().call("none".to_owned()).await.unwrap_err();
    assert_eq!(error.downcast::<Error>().unwrap().status, Status::NotFound);
    let mut words = layers(Duration::from_millis(20)).service(method);
    let late = words.ready().await.unwrap().call("forever".to_owned()).await.unwrap_err();
    assert!(late.is::<tower::timeout::error::Elapsed>(), "{late}");
    let mut raw = layers(long).service(client.client().clone());
    assert_eq!(raw.ready().await.unwrap().call((9, Vec::new())).await.unwrap(), b"raw");
}
