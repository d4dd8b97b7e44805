//! Generates the service's code. Payloads are `Bytes`, which favours tonic.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/bench.proto");
    let files = protox::compile(["bench.proto"], ["proto"])?;
    tonic_prost_build::configure().bytes(".").compile_fds(files)?;
    Ok(())
}
