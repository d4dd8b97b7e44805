//! Typed services: handlers of all kinds, codecs, and versions of a service at both ends.

#![allow(non_snake_case, reason = "tests are named function__condition")]

mod codecs;
mod corpus;
mod details;
mod interceptors;
mod kinds;
mod metadata;
mod panics;
mod stream_metadata;
mod streams;
mod versions;
mod without_network;

use petrel::Client;
use petrel::service::Service;
use petrel::testing::{self, TestServer};

/// Starts a server of a service within the process, and connects a client.
fn serve<S: Service>(make: impl Fn() -> S + Send + 'static) -> (TestServer, Client) {
    let server = testing::serve(move |endpoint| {
        endpoint.serve(make());
        make
    });
    let client = server.client();
    (server, client)
}
