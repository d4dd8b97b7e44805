//! The reader of postcard's messages.

use std::collections::BTreeMap;

use petrel::service::{Decode, Postcard};
use serde::{Deserialize, Serialize};

/// A message with every kind of value, and with itself.
#[derive(Serialize, Deserialize)]
struct Order {
    item: String,
    lines: Vec<(u16, Option<String>)>,
    kinds: Vec<Kind>,
    map: BTreeMap<u64, (bool, [i32; 2], ())>,
}

#[derive(Serialize, Deserialize)]
enum Kind {
    Plain,
    Around(Box<Order>),
    Pair(i8, f32),
    Named { letter: char, wide: i128 },
}

/// Reads any bytes as postcard itself does, except messages whose depth or number of items would cost too much.
pub fn check(data: &[u8]) {
    // The other reader has no limit, and needs stack for each value within a value.
    let data = &data[..data.len().min(2_000)];
    let theirs = postcard::take_from_bytes::<Order>(data).ok();
    let theirs = theirs.filter(|(_, rest)| rest.is_empty()).map(|(order, _)| written(&order));
    match <Postcard as Decode<Order>>::decode(data) {
        Ok(order) => {
            let own = written(&order);
            assert_eq!(theirs.as_ref(), Some(&own));
            let again = <Postcard as Decode<Order>>::decode(&own).map(|order| written(&order));
            assert_eq!(again.as_ref(), Ok(&own), "what is read survives being written");
        }
        Err(why) => {
            let why = why.to_string();
            let is_limit = why.contains("too deeply") || why.contains("more items than bytes");
            assert!(theirs.is_none() || is_limit, "{why}");
        }
    }
}

fn written(order: &Order) -> Vec<u8> {
    postcard::to_stdvec(order).expect("an order can be written")
}
