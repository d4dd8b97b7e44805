use petrel::{Endpoint, Request};

fn keep(endpoint: &mut Endpoint) {
    let mut kept: Vec<Request<'static>> = Vec::new();
    endpoint.register(1, move |_cx, request| {
        kept.push(request);
        loop {}
    });
}

fn main() {}
