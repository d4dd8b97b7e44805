//! Runs the example programs.

#[path = "../../examples/tokio_greeter.rs"]
mod tokio_greeter;

#[path = "../../examples/thread_per_core.rs"]
mod thread_per_core;

#[test]
fn tokio_greeter__greets() {
    tokio_greeter::main().unwrap();
}

#[test]
fn thread_per_core__counts() {
    thread_per_core::main().unwrap();
}
