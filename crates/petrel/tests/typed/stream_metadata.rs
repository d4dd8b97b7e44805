//! Metadata of streams in both directions, details of their errors, and the interceptors around them.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use petrel::client::wait;
use petrel::service::{
    CallEnd, ClientInterceptor, Ctx, IncomingCall, OutgoingCall, Raw, ServerInterceptor,
};
use petrel::stream::{Receiver, Sender};
use petrel::{Client, Error, Execution, Server, Status};

use crate::serve;

#[petrel::service(name = "test.Tags", codec = Raw)]
trait Tags {
    /// Sends the metadata of the stream, those of a nested stream, and ends as the request says.
    async fn list(&self, cx: &Ctx, end: String, tags: Sender<String>) -> Result<(), Error>;
    /// Returns the metadata, behind the client's messages.
    async fn count(&self, cx: &Ctx, words: Receiver<String>) -> Result<String, Error>;
}

/// A server whose handlers open streams of the client.
#[derive(Clone, Default)]
struct Tagged(Arc<OnceLock<TagsClient>>);

impl Tags for Tagged {
    async fn list(&self, cx: &Ctx, end: String, mut tags: Sender<String>) -> Result<(), Error> {
        tags.send(format!("{:?}", cx.metadata())).await?;
        cx.reply_metadata("first", "1")?;
        if let (Some(nested), "nested") = (self.0.get(), &*end) {
            let mut nested = nested.list("ok".to_owned()).inherit(cx.metadata()).start().await?;
            tags.send(nested.next().await.expect("a message")?).await?;
        }
        if end == "forever" {
            cx.handle().sleep(Duration::from_secs(3_600)).await;
        }
        cx.reply_metadata("last-bin", [0, 255])?;
        match &*end {
            "fail" => {
                let error = Error::new(Status::Aborted, "as asked");
                Err(error.with_detail_bytes("test.Why", &[7; 900]))
            }
            "panic" => panic!("as asked"),
            _ => Ok(()),
        }
    }

    async fn count(&self, cx: &Ctx, mut words: Receiver<String>) -> Result<String, Error> {
        let mut count = 0;
        while let Some(word) = words.next().await {
            word?;
            count += 1;
        }
        cx.reply_metadata("count", count.to_string())?;
        Ok(format!("{:?}", cx.metadata()))
    }
}

fn ends(receiver: &Receiver<String>) -> (Option<String>, Option<Vec<u8>>) {
    let metadata = receiver.metadata();
    let last = metadata.get_bytes("last-bin").map(<[u8]>::to_vec);
    (metadata.get("first").map(str::to_owned), last)
}

#[test]
fn metadata__go_with_the_begin_and_the_end_of_streams() {
    let tagged = Tagged::default();
    let served = tagged.clone();
    let (_server, client) = serve(move || TagsServer::new(served.clone()));
    let client = TagsClient::new(client);
    assert!(tagged.0.set(client.clone()).is_ok());
    wait(async {
        let call = client.list("nested".to_owned()).metadata("tenant", "a");
        let mut tags = call.inherited_metadata("trace", "9").start().await.unwrap();
        let all = [tags.next().await, tags.next().await].map(|tag| tag.unwrap().unwrap());
        assert_eq!(all, [r#"{"tenant": "a", "trace": "9"}"#, r#"{"trace": "9"}"#]);
        assert_eq!(ends(&tags), (None, None), "before the end");
        assert!(tags.next().await.is_none());
        assert_eq!(ends(&tags), (Some("1".to_owned()), Some(vec![0, 255])));

        let mut tags = client.list("fail".to_owned()).start().await.unwrap();
        assert_eq!(tags.next().await.unwrap().unwrap(), "{}");
        let error = tags.next().await.unwrap().unwrap_err();
        assert_eq!((error.status, error.execution), (Status::Aborted, Execution::Answered));
        let details: Vec<_> = error.details().map(|one| (one.name, one.value)).collect();
        assert_eq!((&*error.message, details), ("as asked", vec![("test.Why", &[7; 900][..])]));
        assert_eq!(ends(&tags), (Some("1".to_owned()), Some(vec![0, 255])), "an error has both");

        let (mut words, mut count) = client.count().metadata("tenant", "b").await.unwrap();
        words.send("one".to_owned()).await.unwrap();
        words.finish();
        assert_eq!((&mut count).await.unwrap(), r#"{"tenant": "b"}"#);
        assert_eq!(count.metadata().get("count"), Some("1"));

        let large = "x".repeat(1_000);
        let full = client.list(String::new()).metadata("large", &large).await.unwrap();
        drop(full);
        for (key, status) in [("more", Status::ResourceExhausted), ("Key", Status::InvalidArgument)]
        {
            let call = client.list(String::new()).metadata("large", &large);
            let error = call.metadata(key, "0123456789 0123456789").await.unwrap_err();
            assert_eq!((error.status, error.execution), (status, Execution::NotSent));
        }
    });
}

/// Adds its name to the metadata, and notes the begin and the end.
#[derive(Clone)]
struct Log(&'static str, Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, line: String) {
        self.1.lock().unwrap().push(line);
    }
}

impl ClientInterceptor for Log {
    fn before(&self, call: &mut OutgoingCall<'_>) -> Result<(), Error> {
        self.add(format!("{} {} {:?}", self.0, call.method(), call.timeout()));
        call.metadata().insert(self.0, "seen")
    }

    fn after(&self, call: &OutgoingCall<'_>, end: &CallEnd<'_>) {
        assert_eq!(call.sent_metadata().get(self.0), Some("seen"));
        self.add(format!("{} {}", self.0, end.status()));
    }
}

impl ServerInterceptor for Log {
    fn before(&self, call: &IncomingCall<'_>) -> Result<(), Error> {
        call.reply_metadata("from", call.metadata().get("outer").unwrap_or("none"))
    }
}

#[test]
fn interceptors__surround_the_whole_stream_and_add_metadata() {
    let lines = Arc::default();
    let (_server, client) =
        serve(|| TagsServer::new(Tagged::default()).with(Log("server", Arc::default())));
    let log = |name| Log(name, Arc::clone(&lines));
    let plain = TagsClient::new(client);
    let client = plain.clone().with(log("outer")).with(log("inner"));
    let take = || std::mem::take(&mut *lines.lock().unwrap());
    let begin = ["outer test.Tags/List Some(9s)", "inner test.Tags/List Some(9s)"];
    let call = |end: &str| client.list(end.to_owned()).timeout(Duration::from_secs(9));
    wait(async {
        for (end, status) in
            [("ok", "OK"), ("fail", "ABORTED"), ("panic", "INTERNAL"), ("forever", "CANCELLED")]
        {
            let unstarted = call(end);
            assert!(take().is_empty(), "the stream has not begun");
            let mut tags = unstarted.start().await.unwrap();
            assert_eq!(take(), begin);
            let tag = tags.next().await.unwrap().unwrap();
            assert_eq!(tag, r#"{"outer": "seen", "inner": "seen"}"#);
            assert!(take().is_empty(), "the stream goes on");
            if end != "forever" {
                while tags.next().await.is_some() {}
                let expected = if end == "panic" { None } else { Some("seen") };
                assert_eq!(tags.metadata().get("from"), expected);
            }
            drop(tags);
            assert_eq!(take(), [format!("inner {status}"), format!("outer {status}")], "{end}");
        }
        let (words, count) = client.count().start().await.unwrap();
        drop(words);
        assert_eq!(count.await.unwrap(), r#"{"outer": "seen", "inner": "seen"}"#);
        assert_eq!(take()[2..], ["inner OK", "outer OK"]);
        drop(client.list(String::new()));
        assert!(take().is_empty(), "a stream that was not started");
    });
    // No server has the stream.
    let server = Server::bind("127.0.0.1:0").serve(
        |_| (),
        |endpoint| {
            endpoint.on(1, |_, cx, request| request.reply(cx, b""));
        },
    );
    let server = server.start().unwrap();
    let client = Client::connect_wait(server.local_addr()).unwrap();
    let client = TagsClient::new(client).with(log("outer"));
    client.count().start_wait().unwrap_err();
    assert_eq!(take(), ["outer test.Tags/Count None", "outer UNIMPLEMENTED"]);
}
