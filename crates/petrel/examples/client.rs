//! A client of the example `server`: many outstanding calls at once, and an error.

use std::error::Error;

use petrel::Client;

const GET: u16 = 1;
const PUT: u16 = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:31850".to_owned());
    let client = Client::connect_wait(address)?;

    client.call(PUT, b"bird\0petrel").wait()?;

    // A hundred at once. Repeating a GET does no harm: the call may be retried whatever happened to an attempt.
    let calls: Vec<_> = (0..100).map(|_| client.call(GET, "bird").idempotent().started()).collect();
    for call in calls {
        assert_eq!(call.wait()?, b"petrel");
    }
    println!("100 calls answered");

    // A failure has a cause, and says whether the server may have executed the call.
    match client.call(GET, "fish").wait() {
        Ok(value) => println!("{}", String::from_utf8_lossy(&value)),
        Err(error) => println!("no fish: {error}"),
    }
    Ok(())
}
