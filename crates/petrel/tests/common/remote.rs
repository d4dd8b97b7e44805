//! An endpoint on a separate thread, with a client for the test.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use petrel::client::ClientConfig;
use petrel::endpoint::{EndpointConfig, Stop};
use petrel::{Client, Endpoint};

pub(crate) struct Caller {
    pub(crate) client: Client,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Caller {
    /// Connects to a server, and runs the endpoint until [`Caller::end`].
    pub(crate) fn start(config: EndpointConfig, server: SocketAddr) -> Self {
        Self::start_with(config, server, |_| {})
    }

    pub(crate) fn start_with(
        config: EndpointConfig,
        server: SocketAddr,
        set_up: impl FnOnce(&mut Endpoint) + Send + 'static,
    ) -> Self {
        let (ready, started) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut endpoint = super::client(config);
            set_up(&mut endpoint);
            let stop = endpoint.stop_handle();
            let client = endpoint.client([server], plain());
            endpoint.run_until(|_, _| client.stats().servers_ready == 1);
            ready.send((client, stop.clone())).unwrap();
            endpoint.run(&stop);
        });
        let (client, stop) = started.recv().unwrap();
        Self { client, stop, thread: Some(thread) }
    }

    /// Ends the endpoint, and returns when it is gone.
    pub(crate) fn end(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.end();
    }
}

/// Each call is attempted once, with a long timeout.
pub(crate) fn plain() -> ClientConfig {
    let mut config = ClientConfig::default();
    config.attempts_max = 1;
    config.timeout = Duration::from_secs(240);
    config
}
