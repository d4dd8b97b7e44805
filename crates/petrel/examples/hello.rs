//! A server and a client in one process: `cargo run --example hello`.

use petrel::{Client, Server};

const GREET: u16 = 1;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::bind("127.0.0.1:0").serve(
        |_| (),
        |endpoint| {
            endpoint.on(GREET, |_, cx, request| {
                let name = String::from_utf8_lossy(request.data()).into_owned();
                request.reply(cx, format!("Hello, {name}!").as_bytes())
            });
        },
    );
    let server = server.start()?;
    let client = Client::connect_wait(server.local_addr())?;
    let reply = client.call(GREET, "petrel").wait()?;
    println!("{}", String::from_utf8_lossy(&reply));
    Ok(())
}
