//! A server and a client in one process: `cargo run --example hello`.

use std::error::Error;
use std::thread;

use petrel::{EndpointConfig, Nexus};

const GREET: u16 = 1;

fn main() -> Result<(), Box<dyn Error>> {
    let server = Nexus::builder().listen("127.0.0.1:0".parse()?).start()?;
    let address = server.local_addr().ok_or("the server listens")?;
    thread::spawn(move || {
        let mut endpoint = server.endpoint(EndpointConfig::default()).expect("an endpoint");
        endpoint.register(GREET, |cx, request| {
            let name = String::from_utf8_lossy(request.data()).into_owned();
            request.reply(cx, format!("Hello, {name}!").as_bytes())
        });
        endpoint.run_until(|_| false);
    });

    let mut client = Nexus::builder().start()?.endpoint(EndpointConfig::default())?;
    let session = client.connect_wait(address)?;
    let reply = client.call_wait(session, GREET, b"petrel", 100)?;
    println!("{}", String::from_utf8_lossy(&reply));
    Ok(())
}
