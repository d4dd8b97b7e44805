//! Arguments of several subcommands.

pub mod address;
pub mod values;

pub use address::ServerAddress;
pub use values::{BenchTransport, Payload, ReadsChoice};
