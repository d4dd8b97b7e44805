//! Connections that begin.

mod accept;
mod dial;
mod hello;
