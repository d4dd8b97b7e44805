//! Tests of the cache from outside.

mod clients;
mod corpus;
mod model;
mod rounds;
mod server;
mod service;
