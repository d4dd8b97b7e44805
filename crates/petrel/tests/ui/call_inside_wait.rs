use petrel::{Endpoint, SessionId};

// A handler cannot run the event loop that it runs in.
fn recursive(endpoint: &mut Endpoint, session: SessionId) {
    endpoint.register(1, |cx, request| {
        let _ = endpoint.call_wait(session, 2, b"", 0);
        request.reply(cx, b"")
    });
}

fn main() {}
