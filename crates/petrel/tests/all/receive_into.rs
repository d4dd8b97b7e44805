//! Large requests that are put together in memory of the application.

use std::sync::{Arc, Mutex};

use petrel::endpoint::{Destination, Handled};
use petrel::{Client, Context, Request, Server, Status};

use crate::common::over;

const APPEND: u16 = 1;
const LARGE: usize = 1_000_003;

/// A log of one segment, whose windows are given out from the front. The application sees each window when it is whole.
#[derive(Clone, Default)]
struct Log {
    segment: Arc<Mutex<Vec<u8>>>,
    /// Places and lengths of the entries.
    entries: Arc<Mutex<Vec<(usize, usize)>>>,
}

/// A place in the log.
struct Window {
    log: Log,
    start: usize,
    len: usize,
}

impl Destination for Window {
    fn store(&mut self, offset: usize, bytes: &[u8]) {
        let start = self.start + offset;
        self.log.segment.lock().unwrap()[start..start + bytes.len()].copy_from_slice(bytes);
    }

    fn held_bytes(&self) -> usize {
        self.len
    }
}

impl Log {
    fn window(&self, len: usize) -> Window {
        let mut segment = self.segment.lock().unwrap();
        let start = segment.len();
        segment.resize(start + len, 0xEE);
        Window { log: self.clone(), start, len }
    }

    /// Appends a request: in its place already, or to be copied.
    fn append(&self, small: &[u8], window: Option<Window>) -> usize {
        let window = window.unwrap_or_else(|| {
            let mut window = self.window(small.len());
            window.store(0, small);
            window
        });
        self.entries.lock().unwrap().push((window.start, window.len));
        window.len
    }

    fn entry(&self, index: usize) -> Vec<u8> {
        let (start, len) = self.entries.lock().unwrap()[index];
        self.segment.lock().unwrap()[start..start + len].to_vec()
    }
}

fn append(
    log: &mut Log,
    cx: &mut Context<'_, Log>,
    request: Request<'_>,
    window: Option<Window>,
) -> Handled {
    assert!(window.is_none() || request.data().is_empty(), "the bytes are in one place");
    let len = log.append(request.data(), window);
    request.reply(cx, &(len as u64).to_le_bytes())
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251 + seed) as u8).collect()
}

#[test]
fn receive_into__puts_large_requests_in_their_place() {
    for (udp, shm) in [(true, false), (false, true)] {
        let log = Log::default();
        let state = log.clone();
        let server = Server::bind("127.0.0.1:0")
            .endpoint(over(udp, shm))
            .serve(
                move |_| state.clone(),
                |endpoint| endpoint.receive_into(APPEND, |log, len| Some(log.window(len)), append),
            )
            .start()
            .unwrap();
        let client = Client::connect_wait(server.local_addr()).unwrap();
        for (index, len) in [LARGE, 10, 200_000, 0, LARGE].into_iter().enumerate() {
            let request = bytes(len, index);
            let reply = client.call(APPEND, request.clone()).wait().unwrap();
            assert_eq!(&reply[..], (len as u64).to_le_bytes());
            assert!(log.entry(index) == request, "{len} bytes, udp: {udp}");
        }
        assert_eq!(log.segment.lock().unwrap().len(), 2 * LARGE + 200_010, "no further copy");
    }
}

#[test]
fn receive_into__without_a_destination_is_a_usual_request() {
    let log = Log::default();
    let state = log.clone();
    let server = Server::bind("127.0.0.1:0")
        .serve(
            move |_| state.clone(),
            |endpoint| endpoint.receive_into(APPEND, |_, _| None::<Window>, append),
        )
        .start()
        .unwrap();
    let client = Client::connect_wait(server.local_addr()).unwrap();
    client.call(APPEND, bytes(LARGE, 3)).wait().unwrap();
    assert!(log.entry(0) == bytes(LARGE, 3));
}

/// A destination that asks for more memory than the server gives a client.
#[test]
fn receive_into__of_a_destination_beyond_the_memory_is_refused() {
    struct Huge(Vec<u8>);
    impl Destination for Huge {
        fn store(&mut self, offset: usize, bytes: &[u8]) {
            self.0.store(offset, bytes);
        }
        fn held_bytes(&self) -> usize {
            1 << 40
        }
    }
    let server = Server::bind("127.0.0.1:0")
        .serve(
            |_| (),
            |endpoint| {
                let destination = |_: &mut (), len| Some(Huge(vec![0; len]));
                endpoint
                    .receive_into(APPEND, destination, |_, cx, request, _| request.reply(cx, b""));
            },
        )
        .start()
        .unwrap();
    let client = Client::connect_wait(server.local_addr()).unwrap();
    let error = client.call(APPEND, bytes(LARGE, 3)).wait().unwrap_err();
    assert_eq!(error.status, Status::ResourceExhausted);
    client.call(APPEND, bytes(10, 3)).wait().expect("a small request needs no destination");
}

panics! {
    receive_into__keeps_its_handler: "requests arrive in its memory" => {
        use petrel::Nexus;
        use petrel::endpoint::EndpointConfig;
        let nexus = Nexus::builder().start().unwrap();
        let mut endpoint = nexus.endpoint_with(EndpointConfig::default(), Log::default()).unwrap();
        endpoint.receive_into(APPEND, |log, len| Some(log.window(len)), append);
        endpoint.on(APPEND, |_, cx, request| request.reply(cx, b""));
    };
}
