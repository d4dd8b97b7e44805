//! A server of two methods: `cargo run --example server`, and the example `client` beside it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::error::Error;
use std::rc::Rc;

use petrel::{EndpointConfig, Nexus, Status};

/// A request is a key. The response is its value, or NOT_FOUND.
const GET: u16 = 1;
/// A request is a key, a zero byte, and a value. The response is empty.
const PUT: u16 = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:31850".to_owned());
    let nexus = Nexus::builder().listen(address.parse()?).start()?;
    let mut endpoint = nexus.endpoint(EndpointConfig::default())?;

    // An endpoint stays on its thread, and so do its handlers: they share without locks.
    let store = Rc::new(RefCell::new(HashMap::<Vec<u8>, Vec<u8>>::new()));

    let values = store.clone();
    endpoint.register(GET, move |cx, request| match values.borrow().get(request.data()) {
        Some(value) => request.reply(cx, value),
        None => request.fail(cx, Status::NotFound, "there is no such key"),
    });
    endpoint.register(PUT, move |cx, request| {
        let Some(end) = request.data().iter().position(|byte| *byte == 0) else {
            return request.fail(
                cx,
                Status::InvalidArgument,
                "there is no zero byte after the key",
            );
        };
        let (key, value) = request.data().split_at(end);
        store.borrow_mut().insert(key.to_vec(), value[1..].to_vec());
        request.reply(cx, b"")
    });

    println!("listening on {address}");
    endpoint.run(&endpoint.stop_handle());
    Ok(())
}
