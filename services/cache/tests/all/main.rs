//! Tests of the cache from outside.

mod clients;
mod corpus;
mod model;
mod rounds;
mod secured;
mod server;
mod service;
