//! Runs the example programs.

#[path = "../../examples/tokio_greeter.rs"]
mod tokio_greeter;

#[test]
fn tokio_greeter__greets() {
    tokio_greeter::main().unwrap();
}
