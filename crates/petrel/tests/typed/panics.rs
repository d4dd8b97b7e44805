//! Panics of codecs and interceptors: each ends its call or stream with INTERNAL, at either side, and others go on.

use std::sync::{Arc, Mutex};

use petrel::client::wait;
use petrel::service::{
    CallEnd, ClientInterceptor, Ctx, Decode, Encode, IncomingCall, Malformed, OutgoingCall,
    ServerInterceptor,
};
use petrel::stream::{Receiver, Sender};
use petrel::workers::{WorkerRequest, Workers};
use petrel::{Context, Error, Execution, Status};

use crate::serve;

/// A text of the client, and a text of the server.
#[derive(Clone, Debug, PartialEq)]
struct Asked(String);
#[derive(Clone, Debug, PartialEq)]
struct Told(String);

/// A codec that panics over some texts.
struct Fragile;

macro_rules! fragile {
    ($type:ident, $encode:literal, $decode:literal) => {
        impl Encode<$type> for Fragile {
            const NAME: &'static str = "fragile";

            fn len(message: &$type) -> usize {
                message.0.len()
            }

            fn encode(message: &$type, out: &mut [u8]) {
                assert!(message.0 != $encode, "planted");
                out.copy_from_slice(message.0.as_bytes());
            }
        }

        impl Decode<$type> for Fragile {
            fn decode(bytes: &[u8]) -> Result<$type, Malformed> {
                let text = str::from_utf8(bytes)?;
                assert!(text != $decode, "planted");
                Ok($type(text.to_owned()))
            }
        }
    };
}

fragile!(Asked, "ask", "asked");
fragile!(Told, "tell", "told");

/// The request of a stream without one.
impl Encode<()> for Fragile {
    const NAME: &'static str = "fragile";

    fn len((): &()) -> usize {
        0
    }

    fn encode((): &(), _: &mut [u8]) {}
}

impl Decode<()> for Fragile {
    fn decode(_: &[u8]) -> Result<(), Malformed> {
        Ok(())
    }
}

#[petrel::service(name = "test.Texts", codec = Fragile)]
trait Texts {
    async fn task(&self, cx: &Ctx, text: Asked) -> Result<Told, Error>;
    #[dispatch]
    fn dispatch(&self, cx: &mut Context<'_>, text: Asked) -> Result<Told, Error>;
    #[worker]
    fn worker(&self, cx: &WorkerRequest, text: Asked) -> Result<Told, Error>;
    async fn both(
        &self,
        cx: &Ctx,
        texts: Receiver<Asked>,
        echoed: Sender<Told>,
    ) -> Result<(), Error>;
    async fn after(&self, cx: &Ctx, text: Asked, echoed: Sender<Told>) -> Result<(), Error>;
}

struct Echo;

fn echo(text: Asked) -> Result<Told, Error> {
    match &*text.0 {
        "panic" => panic!("planted"),
        _ => Ok(Told(text.0)),
    }
}

impl Texts for Echo {
    async fn task(&self, _: &Ctx, text: Asked) -> Result<Told, Error> {
        echo(text)
    }

    fn dispatch(&self, _: &mut Context<'_>, text: Asked) -> Result<Told, Error> {
        echo(text)
    }

    fn worker(&self, _: &WorkerRequest, text: Asked) -> Result<Told, Error> {
        echo(text)
    }

    async fn both(
        &self,
        _: &Ctx,
        mut texts: Receiver<Asked>,
        mut echoed: Sender<Told>,
    ) -> Result<(), Error> {
        while let Some(text) = texts.next().await {
            echoed.send(echo(text?)?).await?;
        }
        Ok(())
    }

    async fn after(&self, _: &Ctx, text: Asked, mut echoed: Sender<Told>) -> Result<(), Error> {
        echoed.send(echo(text)?).await
    }
}

fn workers() -> Workers {
    Workers::builder().threads(1).start().expect("workers")
}

#[test]
fn codecs__that_panic_end_their_call() {
    let workers = workers();
    let (_server, client) = serve(move || TextsServer::new(Echo, &workers));
    let client = TextsClient::new(client);
    let asked = |text: &str| Asked(text.to_owned());
    let calls = |text: &str| {
        let text = asked(text);
        let plain = [client.task(&text), client.dispatch(&text), client.worker(&text)];
        let more = [client.task(&text), client.dispatch(&text), client.worker(&text)];
        let annotated = more.map(|call| call.metadata("a", "b").wait());
        plain.map(|call| call.wait()).into_iter().chain(annotated)
    };
    for (text, execution) in [
        ("ask", Execution::NotSent),
        ("asked", Execution::Answered),
        ("tell", Execution::Answered),
        ("told", Execution::Answered),
        ("panic", Execution::Answered),
    ] {
        for outcome in calls(text) {
            let error = outcome.unwrap_err();
            assert_eq!((error.status, error.execution), (Status::Internal, execution), "{error}");
        }
        assert!(calls("fine").all(|outcome| outcome.unwrap() == Told("fine".to_owned())));
        wait(async {
            let (mut texts, mut echoed) = client.both().start().await.unwrap();
            let sent = texts.send(asked(text)).await;
            assert_eq!(sent.is_err(), text == "ask");
            let error = echoed.next().await.unwrap().unwrap_err();
            assert_eq!(error.status, Status::Internal, "{text}: {error}");
            assert!(echoed.next().await.is_none());
            let one = match client.after(asked(text)).start().await {
                Ok(mut echoed) => echoed.next().await.unwrap().map(drop),
                Err(error) => Err(error),
            };
            assert_eq!(one.unwrap_err().status, Status::Internal, "{text}");
            let mut echoed = client.after(asked("fine")).start().await.unwrap();
            assert_eq!(echoed.next().await.unwrap().unwrap(), Told("fine".to_owned()));
        });
    }
}

/// Panics before or after, and notes the ends.
#[derive(Clone)]
struct Breaks(&'static str, Arc<Mutex<Vec<String>>>);

impl Breaks {
    fn before(&self) -> Result<(), Error> {
        assert!(self.0 != "before", "planted");
        Ok(())
    }

    fn after(&self, end: &CallEnd<'_>) {
        self.1.lock().unwrap().push(format!("{} {}", self.0, end.status()));
        assert!(self.0 != "after", "planted");
    }
}

impl ClientInterceptor for Breaks {
    fn before(&self, _: &mut OutgoingCall<'_>) -> Result<(), Error> {
        self.before()
    }

    fn after(&self, _: &OutgoingCall<'_>, end: &CallEnd<'_>) {
        self.after(end);
    }
}

impl ServerInterceptor for Breaks {
    fn before(&self, _: &IncomingCall<'_>) -> Result<(), Error> {
        self.before()
    }

    fn after(&self, _: &IncomingCall<'_>, end: &CallEnd<'_>) {
        self.after(end);
    }
}

/// Interceptors around one that panics see the end, also of a handler that panics itself.
#[test]
fn interceptors__that_panic_end_their_call() {
    let lines = Arc::default();
    let breaks = |at| Breaks(at, Arc::clone(&lines));
    let take = || std::mem::take(&mut *lines.lock().unwrap());
    let texts = ["fine", "panic"].map(|text| Asked(text.to_owned()));
    for at in ["before", "after"] {
        let (outer, broken, pool) = (breaks("outer"), breaks(at), workers());
        let (_server, client) =
            serve(move || TextsServer::new(Echo, &pool).with(outer.clone()).with(broken.clone()));
        let plain = TextsClient::new(client);
        let check = |error: Error, is_told: bool| {
            assert_eq!(error.status, Status::Internal, "{error}");
            let lines = take();
            assert_eq!(
                lines.iter().filter(|line| line.starts_with("outer")).count(),
                1,
                "{lines:?}"
            );
            assert_eq!(lines.iter().any(|line| line.starts_with("after")), is_told, "{lines:?}");
        };
        for text in &texts {
            for call in [plain.task(text), plain.dispatch(text), plain.worker(text)] {
                check(call.wait().unwrap_err(), at == "after");
            }
            let end = wait(async {
                let mut echoed = plain.after(text).start().await.unwrap();
                let message = echoed.next().await.unwrap();
                if message.is_ok() { echoed.next().await.unwrap() } else { message }
            });
            check(end.unwrap_err(), at == "after");
        }
    }
    let pool = workers();
    let (_server, client) = serve(move || TextsServer::new(Echo, &pool));
    let plain = TextsClient::new(client);
    for at in ["before", "after"] {
        let client = plain.clone().with(breaks("outer")).with(breaks(at));
        for text in &texts {
            for call in [client.task(text), client.dispatch(text), client.worker(text)] {
                let error = call.wait().unwrap_err();
                assert_eq!(error.status, Status::Internal, "{error}");
                assert_eq!(take().len(), if at == "after" { 2 } else { 1 });
            }
            let end = wait(async {
                let mut echoed = match client.after(text).start().await {
                    Ok(echoed) => echoed,
                    Err(error) => return Err(error),
                };
                let message = echoed.next().await.unwrap();
                if message.is_ok() { echoed.next().await.unwrap() } else { message }
            });
            assert_eq!(end.unwrap_err().status, Status::Internal);
            assert_eq!(take().len(), if at == "after" { 2 } else { 1 });
        }
        // Dropped calls and streams are ends, too.
        drop(client.task(&texts[0]).started());
        drop(wait(client.both().start()));
        let expected = if at == "after" { 4 } else { 2 };
        assert_eq!(take().len(), expected, "{at}");
    }
}
