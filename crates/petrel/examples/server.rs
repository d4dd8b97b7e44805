//! A server with two methods: `cargo run --example server`, with the example `client`. Ctrl-C ends it after the clients
//! have left.

use std::collections::HashMap;
use std::error::Error;

use petrel::endpoint::Handled;
use petrel::{Context, Request, Server, Status};

/// A request is a key. The response is its value, or NOT_FOUND.
const GET: u16 = 1;
/// A request is a key, a zero byte, and a value. The response is empty.
const PUT: u16 = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:31850".to_owned());
    let server = Server::bind(&address).serve(
        |_| Store::default(),
        |endpoint| {
            endpoint.on(GET, Store::get);
            endpoint.on(PUT, Store::put);
        },
    );
    println!("listening on {address}");
    server.run()?;
    Ok(())
}

/// The endpoint owns the store, and lends it to the handlers.
#[derive(Default)]
struct Store(HashMap<Vec<u8>, Vec<u8>>);

impl Store {
    fn get(&mut self, cx: &mut Context<'_, Store>, request: Request<'_>) -> Handled {
        match self.0.get(request.data()) {
            Some(value) => request.reply(cx, value),
            None => request.fail(cx, Status::NotFound, "there is no such key"),
        }
    }

    fn put(&mut self, cx: &mut Context<'_, Store>, request: Request<'_>) -> Handled {
        let Some(end) = request.data().iter().position(|byte| *byte == 0) else {
            let message = "there is no zero byte after the key";
            return request.fail(cx, Status::InvalidArgument, message);
        };
        let (key, value) = request.data().split_at(end);
        self.0.insert(key.to_vec(), value[1..].to_vec());
        request.reply(cx, b"")
    }
}
