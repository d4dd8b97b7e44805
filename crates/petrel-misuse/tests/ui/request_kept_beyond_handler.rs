use petrel::{Endpoint, Request};

fn keep(endpoint: &mut Endpoint) {
    let mut kept: Vec<Request<'static>> = Vec::new();
    endpoint.on(1, move |_, _cx, request| {
        kept.push(request);
        loop {}
    });
}

fn main() {}
