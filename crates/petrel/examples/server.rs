//! A server of two methods: `cargo run --example server`, and the example `client` beside it. Ctrl-C ends it when its clients
//! have left.

use std::cell::RefCell;
use std::collections::HashMap;
use std::error::Error;
use std::rc::Rc;

use petrel::{Endpoint, Server, Status};

/// A request is a key. The response is its value, or NOT_FOUND.
const GET: u16 = 1;
/// A request is a key, a zero byte, and a value. The response is empty.
const PUT: u16 = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:31850".to_owned());
    let server = Server::bind(&address).serve(serve);
    println!("listening on {address}");
    server.run()?;
    Ok(())
}

fn serve(endpoint: &mut Endpoint) {
    // An endpoint stays on its thread, and so do its handlers: they share without locks.
    let store = Rc::new(RefCell::new(HashMap::<Vec<u8>, Vec<u8>>::new()));

    let values = store.clone();
    endpoint.register(GET, move |cx, request| match values.borrow().get(request.data()) {
        Some(value) => request.reply(cx, value),
        None => request.fail(cx, Status::NotFound, "there is no such key"),
    });
    endpoint.register(PUT, move |cx, request| {
        let Some(end) = request.data().iter().position(|byte| *byte == 0) else {
            let message = "there is no zero byte after the key";
            return request.fail(cx, Status::InvalidArgument, message);
        };
        let (key, value) = request.data().split_at(end);
        store.borrow_mut().insert(key.to_vec(), value[1..].to_vec());
        request.reply(cx, b"")
    });
}
