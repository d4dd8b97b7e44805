//! What the programs of all peers share, so that they are measured alike.
//!
//! Each peer is a program with two roles: `server` prints `ready ADDRESS` and serves until it is
//! killed; `client` runs one [`Plan`] against it and prints one [`Outcome`] as a line of JSON. Both
//! stay on one CPU, all their threads included. The runner starts both.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`args`] | the command line |
//! | [`content`] | what requests hold, and what must come back |
//! | [`meter`] | counts, times and checks the calls of a window |
//! | [`tasks`] | the closed loop of peers whose calls are futures |
//! | [`outcome`] | the result of a window, as JSON |
//! | [`process`] | pinning, and an end when the parent ends |
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

/// What a peer's program ends with if it fails.
pub type Failure = Box<dyn std::error::Error>;

/// Runs a peer's program: reads the command line, settles on the CPU, and becomes what it was
/// asked to be.
///
/// # Errors
/// What the server or the client failed with.
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

/// Tells the runner that the server answers at this address.
pub fn ready(address: impl std::fmt::Display) {
    println!("ready {address}");
}
