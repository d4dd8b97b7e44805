//! No part of the library reads a message buffer after its return: over UDP and shared memory, with retransmissions,
//! failing calls, and stalled peers (eRPC §4.2.2, appendices B and C).
//!
//! The application overwrites returned buffers and reuses them for the next calls. All bytes that reach the peer, and
//! over UDP all bytes that leave, must belong to the right call.

mod message;
mod relay;
mod shm;
mod udp;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use petrel::endpoint::{Handled, SessionId};
use petrel::unstable::control::ControlPlane;
use petrel::{Context, Endpoint, MsgBuf, Reply, Request, Status};
use petrel_transport::Transport;

use message::{call_of, fill, is_part, overwrite};

/// Far longer than any step on a loaded machine: only a hang exceeds it.
const HANG: Duration = Duration::from_secs(120);

const ECHO: u16 = 1;

/// The application's state: returned buffers, and the outcomes of its calls.
#[derive(Default)]
struct App {
    spare: Vec<MsgBuf>,
    calls: u32,
    succeeded: u32,
    failed: Vec<Status>,
}

type Shared = Rc<RefCell<App>>;

/// Takes a returned buffer, or a new one.
fn buffer(app: &Shared, cx: &Context<'_>, len: usize) -> MsgBuf {
    let mut app = app.borrow_mut();
    let place = app.spare.iter().position(|buffer| buffer.capacity() >= len);
    let mut buffer = match place {
        Some(place) => app.spare.swap_remove(place),
        None => cx.alloc(len).unwrap(),
    };
    buffer.set_len(len);
    buffer
}

/// Makes a call with a request of `len` bytes and a response of the same length.
fn call(app: &Shared, cx: &mut Context<'_>, session: SessionId, len: usize) {
    let (mut request, response) = (buffer(app, cx, len), buffer(app, cx, len));
    let number = app.borrow().calls;
    app.borrow_mut().calls += 1;
    fill(number, &mut request);
    let back = Rc::clone(app);
    cx.call(session, ECHO, request)
        .into_buffer(response)
        .then(move |_, _, reply| end(&back, number, len, reply))
        .unwrap();
}

/// Ends a call: its buffers belong to the application alone again.
fn end(app: &Shared, number: u32, len: usize, reply: Reply) {
    let Reply { outcome, mut request, mut response, .. } = reply;
    let mut app = app.borrow_mut();
    assert!(request.len() == len && is_part(number, 0, &request), "request {number} has changed");
    match outcome {
        Ok(()) => {
            assert!(response.len() == len && is_part(number, 0, &response), "answer {number}");
            app.succeeded += 1;
        }
        Err(failure) => app.failed.push(failure.status),
    }
    overwrite(&mut request);
    overwrite(&mut response);
    app.spare.extend([request, response]);
}

/// Answers with the request, if all of it belongs to one call.
fn echo(cx: &mut Context<'_>, request: Request<'_>) -> Handled {
    let data = request.data();
    let number = call_of(data).expect("a whole word");
    assert!(is_part(number, 0, data), "request {number} came with other bytes");
    let len = data.len();
    request.reply_with(cx, len, |data, out| {
        out.copy_from_slice(data);
        len
    })
}

/// Drops the application's buffers, and checks that none is missing.
fn give_back<T: Transport, C: ControlPlane<T::Link>>(app: &Shared, endpoint: &Endpoint<(), T, C>) {
    app.borrow_mut().spare.clear();
    assert_eq!(endpoint.buffers_in_use().count, 0);
}
