//! The shared code of all peers' programs, so all are measured alike.
//!
//! A peer is a program with two roles. The `server` prints `ready ADDRESS` and serves until killed. The
//! `client` runs a [`Plan`] against the server and prints an [`Outcome`] as a line of JSON. A process
//! stays on a single CPU with all its threads. The runner starts server and client.
//!
//! | module | purpose |
//! | --- | --- |
//! | [`args`] | the command line |
//! | [`content`] | the content of requests, and the expected replies |
//! | [`meter`] | counts, times and checks the calls of a window |
//! | [`tasks`] | the closed loop of peers whose calls are futures |
//! | [`outcome`] | the result of a window, as JSON |
//! | [`process`] | pinning, and termination with the parent |
//! | [`clock`] | time at 10 ns a reading |

pub mod args;
pub mod clock;
pub mod content;
pub mod meter;
pub mod outcome;
pub mod process;
pub mod tasks;

pub use args::{ClientArgs, Plan, Role, ServerArgs, Workload};
pub use content::{BULK_BYTES, Bulk, REPLY_BYTES, SMALL_BYTES, Sink};
pub use meter::Meter;
pub use outcome::Outcome;

/// The failure of a peer's program.
pub type Failure = Box<dyn std::error::Error>;

/// Runs a peer's program: reads the command line, settles on the CPU, and runs the requested role.
///
/// # Errors
/// The failure of the server or the client.
pub fn run(
    server: impl FnOnce(ServerArgs) -> Result<(), Failure>,
    client: impl FnOnce(ClientArgs) -> Result<Outcome, Failure>,
) -> Result<(), Failure> {
    let role = args::parse();
    process::settle(role.cpu(), role.priority())?;
    match role {
        Role::Server(args) => server(args),
        Role::Client(args) => {
            println!("{}", serde_json::to_string(&client(args)?)?);
            Ok(())
        }
    }
}

/// Prints the server's address as a sign of readiness.
pub fn ready(address: impl std::fmt::Display) {
    println!("ready {address}");
}
