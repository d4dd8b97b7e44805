//! Tests of the cache from outside.

mod model;
