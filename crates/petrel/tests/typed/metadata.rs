//! Metadata of requests and replies: handlers of every kind, every codec, versions, and limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use petrel::endpoint::HEALTH_METHOD;
use petrel::security::Grant;
use petrel::service::{Ctx, Metadata, Postcard, Prost, Raw, TABLES, Zerocopy, parse};
use petrel::workers::{WorkerRequest, Workers};
use petrel::{Client, Context, Error, Execution, Server, Status};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::serve;

#[petrel::service(name = "test.Tenants", codec = Raw)]
trait Tenants {
    async fn task(&self, cx: &Ctx, text: String) -> Result<String, Error>;
    async fn task_in_place(&self, cx: &Ctx, text: &str) -> Result<String, Error>;
    #[dispatch]
    #[id(7)]
    fn dispatch(&self, cx: &mut Context<'_>, text: String) -> Result<String, Error>;
    #[dispatch]
    fn dispatch_in_place(&self, cx: &mut Context<'_>, text: &str) -> Result<String, Error>;
    #[worker]
    #[idempotent]
    fn worker(&self, cx: &WorkerRequest, text: String) -> Result<String, Error>;
    #[worker]
    fn worker_in_place(&self, cx: &WorkerRequest, text: &str) -> Result<String, Error>;
}

/// Answers with the tenant and the text, and with the text's length in the metadata.
struct ByTenant;

impl ByTenant {
    fn reply(metadata: &Metadata, text: &str) -> Result<String, Error> {
        match text {
            "fail" => Err(Error::new(Status::Aborted, "as asked").with_detail_bytes("why", b"x")),
            _ => Ok(format!("{}: {text}", metadata.get("tenant").unwrap_or("nobody"))),
        }
    }
}

impl Tenants for ByTenant {
    async fn task(&self, cx: &Ctx, text: String) -> Result<String, Error> {
        assert_eq!(cx.data(), text.as_bytes(), "the message alone");
        cx.handle().sleep(Duration::from_micros(1)).await;
        cx.reply_metadata("length", text.len().to_string())?;
        Self::reply(cx.metadata(), &text)
    }

    async fn task_in_place(&self, cx: &Ctx, text: &str) -> Result<String, Error> {
        cx.reply_metadata("length", text.len().to_string())?;
        Self::reply(cx.metadata(), text)
    }

    fn dispatch(&self, cx: &mut Context<'_>, text: String) -> Result<String, Error> {
        cx.reply_metadata("length", text.len().to_string())?;
        Self::reply(cx.metadata(), &text)
    }

    fn dispatch_in_place(&self, cx: &mut Context<'_>, text: &str) -> Result<String, Error> {
        cx.reply_metadata("length", text.len().to_string())?;
        Self::reply(cx.metadata(), text)
    }

    fn worker(&self, cx: &WorkerRequest, text: String) -> Result<String, Error> {
        assert_eq!(cx.data(), text.as_bytes(), "the message alone");
        cx.reply_metadata("length", text.len().to_string())?;
        Self::reply(cx.metadata(), &text)
    }

    fn worker_in_place(&self, cx: &WorkerRequest, text: &str) -> Result<String, Error> {
        cx.reply_metadata("length", text.len().to_string())?;
        Self::reply(cx.metadata(), text)
    }
}

fn tenants() -> (petrel::testing::TestServer, TenantsClient) {
    let workers = Workers::builder().threads(1).start().expect("workers");
    let (server, client) = serve(move || TenantsServer::new(ByTenant, &workers));
    (server, TenantsClient::new(client))
}

/// The calls of every method with a text.
fn calls(client: &TenantsClient, text: &str) -> [petrel::client::Call<String>; 6] {
    let owned = text.to_owned();
    [
        client.task(&owned),
        client.task_in_place(text),
        client.dispatch(&owned),
        client.dispatch_in_place(text),
        client.worker(&owned),
        client.worker_in_place(text),
    ]
}

#[test]
fn metadata__reach_handlers_of_every_kind_and_come_back() {
    let (_server, client) = tenants();
    let long = "tern ".repeat(100_000);
    for text in ["petrel", "", &long] {
        for call in calls(&client, text) {
            let call = call.timeout(Duration::from_secs(20)).metadata("tenant", "a");
            let (reply, metadata) = call.with_reply_metadata().wait().unwrap();
            assert_eq!(reply, format!("a: {text}"));
            assert_eq!(metadata.get("length"), Some(&*text.len().to_string()));
        }
        for call in calls(&client, text) {
            assert_eq!(call.wait().unwrap(), format!("nobody: {text}"), "without");
        }
        for call in calls(&client, text) {
            let call = call.metadata("tenant", "b").timeout(Duration::from_secs(20)).started();
            assert_eq!(call.wait().unwrap(), format!("b: {text}"));
        }
        for call in calls(&client, text) {
            let (reply, metadata) = call.with_reply_metadata().started().wait().unwrap();
            assert_eq!((reply, metadata.is_empty()), (format!("nobody: {text}"), false));
        }
    }
    for call in calls(&client, "fail") {
        let error = call.metadata("tenant", "a").wait().unwrap_err();
        let details: Vec<_> = error.details().map(|one| (one.name, one.value)).collect();
        assert_eq!((error.status, details), (Status::Aborted, vec![("why", &b"x"[..])]));
    }
}

#[test]
fn metadata__beyond_the_limits_are_refused_before_sending() {
    let (_server, client) = tenants();
    let call = || client.dispatch("petrel".to_owned());
    let largest = "x".repeat(1_024 - 3 - "tenant".len());
    assert_eq!(call().metadata("tenant", &largest).wait().unwrap().len(), largest.len() + 8);
    let refused = |outcome: Result<String, Error>| {
        let error = outcome.unwrap_err();
        assert_eq!(error.execution, Execution::NotSent);
        (error.status, error.message.clone())
    };
    let (status, text) = refused(call().metadata("tenant", largest + "x").started().wait());
    assert_eq!(status, Status::ResourceExhausted);
    assert_eq!(text, "metadata of 1025 bytes: at most 1024 are allowed");
    let (status, _) = refused(call().metadata("Tenant", "a").metadata("tenant", "a").wait());
    assert_eq!(status, Status::InvalidArgument);
    let raw = client.client().call(7, "petrel").with_reply_metadata().wait().unwrap_err();
    assert_eq!((raw.status, raw.execution), (Status::InvalidArgument, Execution::NotSent));
    assert!(raw.message.starts_with("calls by number have no metadata"), "{raw}");
    // A broken client gets an answer, and no handler runs.
    let numbers = parse(&client.client().call(HEALTH_METHOD, TABLES).wait().unwrap()).unwrap();
    for method in &numbers[0].methods {
        let number = method.envelope.expect("a number with an envelope");
        for body in [&b""[..], b"petrel", b"petrel\xff\xff", b"\x03\x01\0key\x01\x05\0"] {
            let error = client.client().call(number, body).wait().unwrap_err();
            assert_eq!(error.status, Status::InvalidArgument, "{error}");
            let text = format!("test.Tenants/{}: the metadata of the request are", method.name);
            assert!(error.message.starts_with(&text), "{error}");
        }
    }
    assert_eq!(call().metadata("tenant", "a").wait().unwrap(), "a: petrel", "the server goes on");
}

/// Handlers of a server that adds too much itself get the error.
#[petrel::service(codec = Raw)]
trait Adds {
    #[dispatch]
    fn add(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Result<String, Error>;
    #[dispatch]
    fn fail(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Result<String, Error>;
}

struct Adding;

impl Adds for Adding {
    fn add(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Result<String, Error> {
        cx.reply_metadata("bytes-bin", bytes)?;
        Ok(String::new())
    }

    fn fail(&self, cx: &mut Context<'_>, _: &[u8]) -> Result<String, Error> {
        assert!(cx.metadata().is_empty(), "a planted panic");
        Ok(format!("{:?}", cx.metadata()))
    }
}

#[test]
fn reply_metadata__beyond_the_limit_and_after_a_panic() {
    let (_server, client) = serve(|| AddsServer::new(Adding));
    let client = AddsClient::new(client);
    let (_, metadata) = client.add(&[7; 1_012][..]).with_reply_metadata().wait().unwrap();
    assert_eq!(metadata.get_bytes("bytes-bin").map(<[u8]>::len), Some(1_012));
    let error = client.add(&[7; 1_013][..]).with_reply_metadata().wait().unwrap_err();
    assert_eq!(error.status, Status::ResourceExhausted);
    // A call without an envelope has the same limit.
    client.add(&[7; 1_013][..]).wait().unwrap_err();
    let error = client.fail(&[][..]).metadata("tenant", "a").wait().unwrap_err();
    assert_eq!(error.status, Status::Internal);
    assert_eq!(client.fail(&[][..]).wait().unwrap(), "{}", "no metadata of the call that panicked");
}

/// Every codec with an envelope: the message begins where it does alone.
#[derive(Clone, Debug, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Point {
    x: zerocopy::little_endian::U64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Name {
    #[prost(string, tag = "1")]
    name: String,
}

macro_rules! echo {
    ($module:ident $codec:ty: $message:ty) => {
        #[allow(clippy::ptr_arg, reason = "one of the messages is a vector")]
        mod $module {
            use super::*;

            #[petrel::service(codec = $codec)]
            pub(super) trait Echo {
                async fn task(&self, cx: &Ctx, message: $message) -> Result<$message, Error>;
                #[dispatch]
                fn dispatch(&self, cx: &mut Context<'_>, of: &$message) -> Result<$message, Error>;
            }

            impl Echo for ByTenant {
                async fn task(&self, cx: &Ctx, message: $message) -> Result<$message, Error> {
                    cx.reply_metadata("tenant", cx.metadata().get("tenant").unwrap_or_default())?;
                    Ok(message)
                }

                fn dispatch(&self, cx: &mut Context<'_>, of: &$message) -> Result<$message, Error> {
                    let tenant = cx.metadata().get("tenant").unwrap_or_default().to_owned();
                    cx.reply_metadata("tenant", tenant)?;
                    Ok(of.clone())
                }
            }

            pub(super) fn check(message: $message) {
                let (_server, client) = serve(|| EchoServer::new(ByTenant));
                let client = EchoClient::new(client);
                for call in [client.task(&message), client.dispatch(&message)] {
                    let call = call.metadata("tenant", "a").with_reply_metadata();
                    let (reply, metadata) = call.wait().unwrap();
                    assert_eq!((reply, metadata.get("tenant")), (message.clone(), Some("a")));
                }
            }
        }
    };
}

echo!(postcards Postcard: Option<String>);
echo!(prosts Prost: Name);
echo!(zerocopies Zerocopy: Point);

#[test]
fn metadata__with_every_codec() {
    postcards::check(Some("petrel".to_owned()));
    prosts::check(Name { name: "petrel".to_owned() });
    zerocopies::check(Point { x: 7.into() });
}

/// A handler that calls a further service.
#[petrel::service(codec = Raw)]
trait Outer {
    async fn call(&self, cx: &Ctx, text: String) -> Result<String, Error>;
}

struct Passing(TenantsClient);

impl Outer for Passing {
    async fn call(&self, cx: &Ctx, text: String) -> Result<String, Error> {
        self.0.task(text).inherit(cx.metadata()).await
    }
}

#[test]
fn inherit__takes_the_marked_entries_to_nested_calls() {
    let (_inner, tenants) = tenants();
    let made = tenants.clone();
    let (_server, client) = serve(move || OuterServer::new(Passing(made.clone())));
    let client = OuterClient::new(client);
    let call = |text: &str| client.call(text.to_owned()).metadata("other", "x");
    assert_eq!(call("one").metadata("tenant", "a").wait().unwrap(), "nobody: one");
    assert_eq!(call("two").inherited_metadata("tenant", "a").wait().unwrap(), "a: two");
}

/// Fails the first calls, so that the client repeats them, and answers with the tenant.
#[petrel::service(codec = Raw)]
trait Flaky {
    #[idempotent]
    #[dispatch]
    fn get(&self, cx: &mut Context<'_>, _: ()) -> Result<String, Error>;
}

struct FailsTwice(Arc<AtomicU32>);

impl Flaky for FailsTwice {
    fn get(&self, cx: &mut Context<'_>, (): ()) -> Result<String, Error> {
        let count = self.0.fetch_add(1, Ordering::Relaxed);
        let tenant = cx.metadata().get("tenant").unwrap_or_default().to_owned();
        match count % 3 {
            2 => Ok(tenant),
            _ => Err(Error::new(Status::Unavailable, tenant)),
        }
    }
}

#[test]
fn retries_and_hedges__have_the_same_metadata() {
    let count = Arc::new(AtomicU32::new(0));
    let made = Arc::clone(&count);
    let (_server, client) = serve(move || FlakyServer::new(FailsTwice(Arc::clone(&made))));
    let client = FlakyClient::new(client);
    assert_eq!(client.get(()).metadata("tenant", "a").wait().unwrap(), "a");
    assert_eq!(count.load(Ordering::Relaxed), 3, "two retries");
    let hedged = client.get(()).metadata("tenant", "a").hedge_after(Duration::ZERO);
    assert_eq!(hedged.wait().unwrap(), "a");
}

/// A grant for a method is a grant for its calls with metadata, and for no other method.
#[test]
fn grants__hold_with_and_without_metadata() {
    let workers = Workers::builder().threads(1).start().expect("workers");
    let server = Server::in_process().serve(
        |_| (),
        move |endpoint| {
            endpoint.authorize(|_| Grant::methods([7]));
            endpoint.serve(TenantsServer::new(ByTenant, &workers));
            endpoint.authorize(|_| Grant::methods([7]));
        },
    );
    let server = server.start().unwrap();
    let client = TenantsClient::new(server.client().unwrap());
    let text = "petrel".to_owned();
    assert_eq!(client.dispatch(&text).wait().unwrap(), "nobody: petrel");
    assert_eq!(client.dispatch(&text).metadata("tenant", "a").wait().unwrap(), "a: petrel");
    for refused in [client.task(&text).wait(), client.task(&text).metadata("tenant", "a").wait()] {
        assert_eq!(refused.unwrap_err().status, Status::PermissionDenied);
    }
}

/// Tasks of the client's own endpoint.
#[test]
fn call__by_tasks_with_metadata() {
    let workers = Workers::builder().threads(1).start().expect("workers");
    let server = Server::bind("127.0.0.1:0");
    let server = server
        .serve(|_| (), move |endpoint| endpoint.serve(TenantsServer::new(ByTenant, &workers)));
    let server = server.start().expect("a server");
    let nexus = petrel::Nexus::builder().start().expect("a nexus");
    let mut endpoint = nexus.endpoint(Default::default()).expect("an endpoint");
    let (handle, address): (petrel::task::Handle, _) = (endpoint.handle(), server.local_addr());
    let outcome = endpoint.block_on(async move {
        let client: Client = handle.client([address], Default::default());
        let client = TenantsClient::new(client);
        let first =
            client.task("one".to_owned()).wait_for_ready().metadata("tenant", "a").started();
        let second = client.dispatch("two".to_owned()).metadata("tenant", "b");
        Ok::<_, Error>((first.await?, second.with_reply_metadata().await?))
    });
    let (first, (second, metadata)) = outcome.unwrap();
    assert_eq!((&*first, &*second), ("a: one", "b: two"));
    assert_eq!(metadata.get("length"), Some("3"));
}
