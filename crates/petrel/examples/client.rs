//! A client of the example `server`: many calls in flight at once, and an error.

use std::cell::Cell;
use std::error::Error;
use std::rc::Rc;

use petrel::{EndpointConfig, Nexus};

const GET: u16 = 1;
const PUT: u16 = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:31850".to_owned());
    let mut endpoint = Nexus::builder().start()?.endpoint(EndpointConfig::default())?;
    let session = endpoint.connect_wait(address.parse()?)?;

    // One call at a time, for tools and tests.
    endpoint.call_wait(session, PUT, b"bird\0petrel", 0)?;

    // A hundred at once. Buffers are given to the call, and come back to its continuation.
    let left = Rc::new(Cell::new(100));
    for _ in 0..100 {
        let request = endpoint.alloc_message(b"bird")?;
        let response = endpoint.alloc(64)?;
        let left = left.clone();
        let called = endpoint.call(session, GET, request, response, move |_, reply| {
            match reply.message() {
                Ok(value) => assert_eq!(value, b"petrel"),
                Err(failure) => println!("{failure}"),
            }
            left.set(left.get() - 1);
        });
        called.map_err(|rejected| rejected.error)?;
    }
    endpoint.run_until(|_| left.get() == 0);
    println!("100 calls answered");

    // A failure says what happened, and whether the server may have executed the call.
    match endpoint.call_wait(session, GET, b"fish", 64) {
        Ok(value) => println!("{}", String::from_utf8_lossy(&value)),
        Err(error) => println!("no fish: {error}"),
    }
    Ok(())
}
