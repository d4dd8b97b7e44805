//! Tests of the cache from outside.

mod corpus;
mod model;
mod server;
