//! Streams of typed services: many messages in one call, from the server, from the client, or both ways.

mod incoming;
mod outgoing;
mod pair;
mod wire;
