//! Generates the interface's code.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    capnpc::CompilerCommand::new().src_prefix("schema").file("schema/bench.capnp").run()?;
    Ok(())
}
