//! Each codec: messages, malformed messages, and old and new versions of messages.

use std::marker::PhantomData;

use petrel::service::{Ctx, Decode, Encode, Malformed, Method, Postcard, Prost, Raw, Zerocopy};
use petrel::{Client, Context, Error, Status};
use serde::{Deserialize, Serialize};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::serve;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    item: String,
    lines: Vec<Line>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Line {
    count: u16,
    note: Option<String>,
}

#[petrel::service(codec = Postcard)]
trait Orders {
    #[id(1)]
    async fn put(&self, cx: &Ctx, order: Order) -> Result<Order, Error>;
    #[id(2)]
    #[dispatch]
    fn count(&self, cx: &mut Context<'_>, order: &Order) -> Result<u64, Error>;
}

struct Shop;

impl Orders for Shop {
    async fn put(&self, _: &Ctx, order: Order) -> Result<Order, Error> {
        Ok(order)
    }

    fn count(&self, _: &mut Context<'_>, order: &Order) -> Result<u64, Error> {
        Ok(order.lines.iter().map(|line| u64::from(line.count)).sum())
    }
}

fn malformed(client: &Client, method: u16, request: &[u8]) -> String {
    let error = client.call(method, request).wait().unwrap_err();
    assert_eq!(error.status, Status::InvalidArgument, "{error}");
    error.message.clone()
}

#[test]
fn postcard__messages_and_the_field_that_is_malformed() {
    let (_server, client) = serve(|| OrdersServer::new(Shop));
    let orders = OrdersClient::new(client);
    let line = |count| Line { count, note: (count > 1).then(|| "several".to_owned()) };
    let order = Order { item: "tern".to_owned(), lines: vec![line(1), line(3)] };
    assert_eq!(orders.put(&order).wait().unwrap(), order);
    assert_eq!(orders.count(&order).wait().unwrap(), 4);
    let bytes = postcard::to_stdvec(&order).unwrap();
    let cut = malformed(orders.client(), 1, &bytes[..bytes.len() - 3]);
    assert!(cut.starts_with("Orders/Put: the request is malformed: lines[1].note: "), "{cut}");
    let text = malformed(orders.client(), 2, &[1, 0xff, 0]);
    assert!(text.starts_with("Orders/Count: the request is malformed: item: "), "{text}");
    let long = malformed(orders.client(), 1, &[&bytes[..], &[0]].concat());
    assert!(long.ends_with("bytes follow the last field"), "{long}");
}

mod first {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Bird {
        #[prost(string, tag = "1")]
        pub(super) name: String,
        #[prost(enumeration = "Kind", tag = "2")]
        pub(super) kind: i32,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
    #[repr(i32)]
    pub(super) enum Kind {
        Unknown = 0,
        Petrel = 1,
    }
}

mod second {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Bird {
        #[prost(string, tag = "1")]
        pub(super) name: String,
        #[prost(int32, tag = "2")]
        pub(super) kind: i32,
        #[prost(bytes = "vec", optional, tag = "3")]
        pub(super) ring: Option<Vec<u8>>,
    }
}

mod old {
    use super::{Ctx, Error, Prost, first};

    #[petrel::service(name = "birds.Birds", codec = Prost, version = "1")]
    pub(super) trait Birds {
        async fn see(&self, cx: &Ctx, bird: first::Bird) -> Result<first::Bird, Error>;
    }

    pub(super) struct Watch;

    impl Birds for Watch {
        async fn see(&self, _: &Ctx, bird: first::Bird) -> Result<first::Bird, Error> {
            Ok(bird)
        }
    }
}

mod new {
    use super::{Context, Error, Prost, second};

    #[petrel::service(name = "birds.Birds", codec = Prost, version = "2")]
    pub(super) trait Birds {
        #[dispatch]
        fn see(&self, cx: &mut Context<'_>, bird: &second::Bird) -> Result<second::Bird, Error>;
    }

    pub(super) struct Watch;

    impl Birds for Watch {
        fn see(&self, _: &mut Context<'_>, bird: &second::Bird) -> Result<second::Bird, Error> {
            Ok(bird.clone())
        }
    }
}

/// Fields that an end does not know are skipped, and missing ones have their defaults; unknown values of enumerations stay.
#[test]
fn prost__old_and_new_versions_understand_each_other() {
    let (_server, client) = serve(|| old::BirdsServer::new(old::Watch));
    let newer = new::BirdsClient::new(client);
    let bird = second::Bird { name: "tern".to_owned(), kind: 9, ring: Some(vec![1, 2]) };
    let seen = newer.see(&bird).wait().unwrap();
    assert_eq!(seen, second::Bird { ring: None, ..bird }, "the older server skips the ring");

    let (_server, client) = serve(|| new::BirdsServer::new(new::Watch));
    let older = old::BirdsClient::new(client);
    let bird = first::Bird { name: "petrel".to_owned(), kind: first::Kind::Petrel.into() };
    for _ in 0..2 {
        assert_eq!(older.see(&bird).wait().unwrap(), bird);
    }
    let empty = first::Bird::default();
    assert_eq!(older.see(&empty).wait().unwrap(), empty, "nothing is left of earlier requests");
}

#[test]
fn prost__names_the_field_that_is_malformed() {
    let why = <Prost as Decode<first::Bird>>::decode(&[0x0a, 2, 0xff, 0xff]).unwrap_err();
    assert!(why.to_string().contains("Bird.name"), "{why}");
}

#[derive(
    Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
struct Point {
    id: U64,
    value: U32,
}

#[petrel::service(codec = Zerocopy)]
trait Points {
    #[dispatch]
    #[id(3)]
    fn double(&self, cx: &mut Context<'_>, point: &Point) -> Result<Point, Error>;
}

struct Doubles;

impl Points for Doubles {
    fn double(&self, _: &mut Context<'_>, point: &Point) -> Result<Point, Error> {
        Ok(Point { id: point.id, value: U32::new(2 * point.value.get()) })
    }
}

#[test]
fn zerocopy__in_place_and_of_a_wrong_length() {
    let (_server, client) = serve(|| PointsServer::new(Doubles));
    let points = PointsClient::new(client);
    for value in [1, 7] {
        let point = Point { id: U64::new(u64::MAX), value: U32::new(value) };
        let doubled = points.double(point).wait().unwrap();
        assert_eq!((doubled.id, doubled.value.get()), (point.id, 2 * value));
    }
    let short = malformed(points.client(), 3, &[0; 11]);
    assert!(short.ends_with("12 bytes expected, not 11"), "{short}");
}

/// A codec of an application.
struct Decimal;

impl Encode<u64> for Decimal {
    const NAME: &'static str = "decimal";

    fn len(number: &u64) -> usize {
        number.to_string().len()
    }

    fn encode(number: &u64, out: &mut [u8]) {
        out.copy_from_slice(number.to_string().as_bytes());
    }
}

impl Decode<u64> for Decimal {
    fn decode(bytes: &[u8]) -> Result<u64, Malformed> {
        str::from_utf8(bytes)?.parse().map_err(Malformed::new)
    }
}

#[petrel::service(codec = Decimal)]
trait Numbers {
    #[id(4)]
    async fn double(&self, cx: &Ctx, number: u64) -> Result<u64, Error>;
}

impl Numbers for Doubles {
    async fn double(&self, _: &Ctx, number: u64) -> Result<u64, Error> {
        Ok(2 * number)
    }
}

#[test]
fn codec__of_an_application_and_a_reply_that_is_malformed() {
    let (_server, client) = serve(|| NumbersServer::new(Doubles));
    let numbers = NumbersClient::new(client);
    assert_eq!(numbers.double(21).wait().unwrap(), 42);
    assert_eq!(numbers.client().call(4, "5").wait().unwrap(), b"10");
    assert!(malformed(numbers.client(), 4, b"five").contains("invalid digit"));

    let (_server, client) = serve(|| wrong::NumbersServer::new(wrong::Number));
    let error = NumbersClient::new(client).double(1).wait().unwrap_err();
    assert_eq!(error.status, Status::Internal);
    assert!(error.message.starts_with("Numbers/Double: the reply is malformed: "), "{error}");
}

/// A server whose codec has the same name, and writes something else.
mod wrong {
    use super::{Ctx, Decimal, Decode, Encode, Error, Malformed};

    struct Wrong;

    impl Encode<u64> for Wrong {
        const NAME: &'static str = "decimal";

        fn len(_: &u64) -> usize {
            9
        }

        fn encode(_: &u64, out: &mut [u8]) {
            out.copy_from_slice(b"no number");
        }
    }

    impl Decode<u64> for Wrong {
        fn decode(bytes: &[u8]) -> Result<u64, Malformed> {
            Decimal::decode(bytes)
        }
    }

    #[petrel::service(codec = Wrong)]
    pub(super) trait Numbers {
        #[id(4)]
        async fn double(&self, cx: &Ctx, number: u64) -> Result<u64, Error>;
    }

    pub(super) struct Number;

    impl Numbers for Number {
        async fn double(&self, _: &Ctx, number: u64) -> Result<u64, Error> {
            Ok(number)
        }
    }
}

/// Markers are ordinary types: a method can be written by hand.
struct ByHand;

impl Method for ByHand {
    type Codec = Decimal;
    type Request = u64;
    type Reply = u64;
    const NAME: &'static str = "Numbers/Double";
}

#[test]
fn entry__has_the_codec_of_its_method() {
    let entry = petrel::service::MethodEntry::of::<ByHand>("Double", None, true);
    assert_eq!((entry.codec, (entry.schema)(), entry.id), ("decimal", 0, None));
}

/// A method of these types.
struct Of<C, Q, A>(PhantomData<(C, Q, A)>);

impl<C: Encode<Q> + Decode<A> + 'static, Q: 'static, A: 'static> Method for Of<C, Q, A> {
    type Codec = C;
    type Request = Q;
    type Reply = A;
    const NAME: &'static str = "S/M";
}

#[test]
fn entry__has_a_fingerprint_of_both_messages() {
    fn of<M: Method>() -> u64 {
        (petrel::service::MethodEntry::of::<M>("M", None, false).schema)()
    }
    let all = [
        of::<Of<Zerocopy, [u8; 16], [u8; 8]>>(),
        of::<Of<Zerocopy, [u8; 32], [u8; 16]>>(),
        of::<Of<Zerocopy, [u8; 8], [u8; 16]>>(),
        of::<Of<Raw, String, Vec<u8>>>(),
        of::<Of<Raw, String, String>>(),
    ];
    for (index, fingerprint) in all.iter().enumerate() {
        assert!(!all[..index].contains(fingerprint), "{index}");
    }
}
