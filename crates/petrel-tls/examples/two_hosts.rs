//! The program of `docs/guide.md`, "Two hosts": a server and a client with credentials.

use std::error::Error;
use std::sync::Arc;

use petrel::{Client, Server};
use petrel_tls::Credentials;

const GREET: u16 = 1;

/// On one host: `greeter serve 10.0.0.1:31850 server`. On the other: `greeter call 10.0.0.1:31850 client`.
fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, part, address, folder] = &arguments[..] else {
        return Err("say `serve` or `call`, where, and the folder of the credentials".into());
    };
    let credentials = Arc::new(Credentials::from_dir(folder)?);
    match part.as_str() {
        "serve" => serve(address, credentials),
        _ => call(address, credentials),
    }
}

fn serve(address: &str, credentials: Arc<Credentials>) -> Result<(), Box<dyn Error>> {
    let server = Server::bind(address).credentials(credentials).serve(
        |_| (),
        |endpoint| {
            endpoint.on(GREET, |_, cx, request| request.reply(cx, b"Hello!"));
        },
    );
    println!("listening on {address}");
    Ok(server.run()?)
}

fn call(address: &str, credentials: Arc<Credentials>) -> Result<(), Box<dyn Error>> {
    let client = Client::builder().credentials(credentials).connect_wait(address)?;
    println!("{}", String::from_utf8_lossy(&client.call(GREET, "").wait()?));
    Ok(())
}
