//! A message buffer that was given back is read by nobody any more: over UDP and shared memory, with
//! packets sent again, calls that fail, and peers that stall (eRPC §4.2.2, appendices B and C).
//!
//! The application overwrites each buffer when it has it back, and makes its next calls with it; what
//! the far end gets, and over UDP whatever leaves at all, must be the bytes of its own call.

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

use message::{call_of, fill, is_part, scribble};

/// Far longer than anything takes, on a machine under any load: only a hang gets there.
const HANG: Duration = Duration::from_secs(120);

const ECHO: u16 = 1;

/// What the application has: buffers that came back, and how its calls ended.
#[derive(Default)]
struct App {
    spare: Vec<MsgBuf>,
    calls: u32,
    succeeded: u32,
    failed: Vec<Status>,
}

type Shared = Rc<RefCell<App>>;

/// Takes a buffer that came back, or a new one.
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

/// Makes a call with a request of so many bytes, to be answered with the same.
fn call(app: &Shared, cx: &mut Context<'_>, session: SessionId, len: usize) {
    let (mut request, response) = (buffer(app, cx, len), buffer(app, cx, len));
    let number = app.borrow().calls;
    app.borrow_mut().calls += 1;
    fill(number, &mut request);
    let back = Rc::clone(app);
    let on_end = move |_: &mut Context<'_>, reply: Reply| end(&back, number, len, reply);
    cx.call(session, ECHO, request)
        .into_buffer(response)
        .then(move |_, cx, reply| on_end(cx, reply))
        .unwrap();
}

/// A call has ended: its buffers are the application's again, and nobody else's.
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
    scribble(&mut request);
    scribble(&mut response);
    app.spare.extend([request, response]);
}

/// Answers with the request, if that is one message from end to end.
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

/// Gives the buffers back that the application keeps, and looks whether all are there.
fn give_back<T: Transport, C: ControlPlane<T::Link>>(app: &Shared, endpoint: &Endpoint<(), T, C>) {
    app.borrow_mut().spare.clear();
    assert_eq!(endpoint.buffers_in_use().count, 0);
}
