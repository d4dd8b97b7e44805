//! Details of errors, from every kind of handler, through nested calls, and as gRPC has them.

use std::time::Duration;

use petrel::service::{Ctx, Decode, Detail, Encode, GrpcStatus, Malformed, Raw};
use petrel::workers::{WorkerRequest, Workers};
use petrel::{Context, Error, Server, Status};
use prost::Message as _;

use crate::serve;

/// A pause before a further attempt, as `google.rpc.RetryInfo` would be.
#[derive(Clone, PartialEq, prost::Message)]
struct RetryInfo {
    #[prost(uint64, tag = "1")]
    pause_ms: u64,
}

impl prost::Name for RetryInfo {
    const NAME: &'static str = "RetryInfo";
    const PACKAGE: &'static str = "google.rpc";
}

/// A detail in a codec of the application.
#[derive(Debug, PartialEq)]
struct Quota(u8);

struct Bytes;

impl Encode<Quota> for Bytes {
    const NAME: &'static str = "quota";

    fn len(_: &Quota) -> usize {
        1
    }

    fn encode(quota: &Quota, out: &mut [u8]) {
        out[0] = quota.0;
    }
}

impl Decode<Quota> for Bytes {
    fn decode(bytes: &[u8]) -> Result<Quota, Malformed> {
        match bytes {
            [quota] => Ok(Quota(*quota)),
            _ => Err(Malformed::new("one byte expected")),
        }
    }
}

impl Detail for Quota {
    type Codec = Bytes;

    fn name() -> std::borrow::Cow<'static, str> {
        "test.Quota".into()
    }
}

fn refusal() -> Error {
    let error = Error::new(Status::ResourceExhausted, "too many");
    error.with_detail(&RetryInfo { pause_ms: 5 }).with_detail(&Quota(9))
}

#[petrel::service(codec = Raw)]
trait Refuses {
    async fn task(&self, cx: &Ctx, _: ()) -> Result<(), Error>;
    #[dispatch]
    #[id(1)]
    fn dispatch(&self, cx: &mut Context<'_>, _: ()) -> Result<(), Error>;
    #[worker]
    fn worker(&self, cx: &WorkerRequest, _: ()) -> Result<(), Error>;
    #[dispatch]
    fn large(&self, cx: &mut Context<'_>, _: ()) -> Result<(), Error>;
}

struct Refusing;

impl Refuses for Refusing {
    async fn task(&self, cx: &Ctx, (): ()) -> Result<(), Error> {
        cx.handle().sleep(Duration::from_micros(1)).await;
        Err(refusal())
    }

    fn dispatch(&self, _: &mut Context<'_>, (): ()) -> Result<(), Error> {
        Err(refusal())
    }

    fn worker(&self, _: &WorkerRequest, (): ()) -> Result<(), Error> {
        Err(refusal())
    }

    fn large(&self, _: &mut Context<'_>, (): ()) -> Result<(), Error> {
        Err(refusal().with_message("ß".repeat(4_000)).with_detail_bytes("large", &[7; 950]))
    }
}

#[test]
fn details__reach_the_client_of_every_kind_of_handler() {
    let workers = Workers::builder().threads(1).start().expect("workers");
    let server = Server::bind("127.0.0.1:0");
    let server = server
        .serve(|_| (), move |endpoint| endpoint.serve(RefusesServer::new(Refusing, &workers)));
    let server = server.start().expect("a server");
    let client = RefusesClient::connect_wait(server.local_addr()).expect("a client");
    let calls = [client.task(()), client.dispatch(()), client.worker(())];
    let raw = client.client().call(1, "").wait().map(drop);
    for outcome in calls.map(|call| call.wait()).into_iter().chain([raw]) {
        let error = outcome.unwrap_err();
        assert_eq!(error.to_string(), "RESOURCE_EXHAUSTED: too many (the server answered)");
        assert_eq!(error.detail::<RetryInfo>(), Some(Ok(RetryInfo { pause_ms: 5 })));
        assert_eq!(error.detail::<Quota>(), Some(Ok(Quota(9))));
        let names: Vec<_> = error.details().map(|detail| detail.name).collect();
        assert_eq!(names, ["type.googleapis.com/google.rpc.RetryInfo", "test.Quota"]);
    }
    let error = client.large(()).wait().unwrap_err();
    let large = error.details().find(|detail| detail.name == "large").expect("a detail");
    assert_eq!((large.value, error.details().count()), (&[7; 950][..], 3));
    assert!(error.message.starts_with("ßß") && error.message.len() < 200, "cut at a letter");
}

/// A detail that does not decode is an error of its own, and no panic.
#[test]
fn detail__that_is_malformed() {
    let error = Error::new(Status::Aborted, "why").with_detail_bytes("test.Quota", b"");
    assert_eq!(error.detail::<Quota>(), Some(Err(Malformed::new("one byte expected"))));
    assert_eq!(error.detail::<RetryInfo>(), None);
}

#[test]
fn grpc_status__of_an_error_and_back() {
    let error = refusal();
    let bytes = GrpcStatus::from(&error).encode_to_vec();
    let own = b"\x08\x08\x12\x08too many\x1a\x2e\x0a\x28type.googleapis.com/google.rpc.RetryInfo\x12\x02\x08\x05\
        \x1a\x0f\x0a\x0atest.Quota\x12\x01\x09";
    assert_eq!(bytes, own, "{}", bytes.escape_ascii());
    let read = GrpcStatus::decode(&bytes[..]).unwrap();
    assert_eq!(Error::from(read), error);
    for (code, status) in [(0, Status::Unknown), (14, Status::Unavailable), (-1, Status::Unknown)] {
        let mut status_of = GrpcStatus::default();
        status_of.code = code;
        assert_eq!(Error::from(status_of).status, status);
    }
    assert_eq!(GrpcStatus::default().encode_to_vec(), b"");
}

/// A codec whose messages cannot be written.
struct Bad;

impl Encode<u64> for Bad {
    const NAME: &'static str = "bad";

    fn len(_: &u64) -> usize {
        8
    }

    fn encode(message: &u64, out: &mut [u8]) {
        assert!(*message != 13, "a planted panic");
        out.copy_from_slice(&message.to_le_bytes());
    }
}

impl Decode<u64> for Bad {
    fn decode(bytes: &[u8]) -> Result<u64, Malformed> {
        bytes.try_into().map(u64::from_le_bytes).map_err(Malformed::new)
    }
}

#[petrel::service(codec = Bad)]
trait Numbers {
    async fn task(&self, cx: &Ctx, number: u64) -> Result<u64, Error>;
    #[dispatch]
    fn dispatch(&self, cx: &mut Context<'_>, number: u64) -> Result<u64, Error>;
    #[worker]
    fn worker(&self, cx: &WorkerRequest, number: u64) -> Result<u64, Error>;
}

struct Adding;

impl Numbers for Adding {
    async fn task(&self, _: &Ctx, number: u64) -> Result<u64, Error> {
        Ok(number + 1)
    }

    fn dispatch(&self, _: &mut Context<'_>, number: u64) -> Result<u64, Error> {
        Ok(number + 1)
    }

    fn worker(&self, _: &WorkerRequest, number: u64) -> Result<u64, Error> {
        Ok(number + 1)
    }
}

#[test]
fn encode__of_a_reply_that_panics_ends_the_call_alone() {
    let workers = Workers::builder().threads(1).start().expect("workers");
    let (_server, client) = serve(move || NumbersServer::new(Adding, &workers));
    let client = NumbersClient::new(client);
    let calls = |number: u64| [client.task(number), client.dispatch(number), client.worker(number)];
    for _ in 0..2 {
        let plain = calls(12).map(|call| call.wait());
        let enveloped = calls(12).map(|call| call.metadata("a", "b").wait());
        for outcome in plain.into_iter().chain(enveloped) {
            assert_eq!(outcome.unwrap_err().status, Status::Internal);
        }
        assert_eq!(calls(1).map(|call| call.wait().unwrap()), [2, 2, 2], "the server goes on");
    }
}
