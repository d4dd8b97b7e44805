//! Typed services: handlers of all kinds, codecs, and versions of a service at both ends.

#![allow(non_snake_case, reason = "tests are named function__condition")]

mod codecs;
mod corpus;
mod details;
mod interceptors;
mod kinds;
mod metadata;
mod versions;

use petrel::server::RunningServer;
use petrel::service::Service;
use petrel::{Client, Server};

/// Starts a server of a service within the process, and connects a client.
fn serve<S: Service>(make: impl Fn() -> S + Clone + Send + 'static) -> (RunningServer, Client) {
    let server = Server::in_process().serve(|_| (), move |endpoint| endpoint.serve(make()));
    let server = server.start().expect("a server");
    let client = server.client().expect("a client");
    (server, client)
}
