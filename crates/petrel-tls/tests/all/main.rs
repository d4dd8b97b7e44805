//! Credentials, connections and keys as a program sees them, against each other and against rustls with other settings.

mod attacks;
mod calls;
mod common;
mod corpus;
mod datagrams;
mod files;
mod handshake;
mod issue;
mod life;
mod links;
mod policy;
mod raw_keys;
mod refusals;
mod streams;
mod vectors;
