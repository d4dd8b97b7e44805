//! QUIC by quinn, over one connection: a stream per call, or, for small calls, an unreliable datagram
//! per direction. QUIC always encrypts.

mod datagrams;
mod setup;
mod streams;

use peers_common::{ClientArgs, Failure, Outcome, ServerArgs, args, ready, tasks};
use quinn::Connection;

fn main() -> Result<(), Failure> {
    peers_common::run(|args| tasks::block_on(serve(args)), |args| tasks::block_on(call(args)))
}

async fn serve(args: ServerArgs) -> Result<(), Failure> {
    let (endpoint, certificate) = setup::server()?;
    ready(setup::address(&endpoint, &certificate)?);
    while let Some(incoming) = endpoint.accept().await {
        let connection = incoming.await?;
        match args.variant.as_str() {
            "streams" => streams::serve(connection).await?,
            "datagrams" => datagrams::serve(connection).await?,
            other => return Err(args::unknown(other)),
        }
    }
    Ok(())
}

async fn call(args: ClientArgs) -> Result<Outcome, Failure> {
    let connection: Connection = setup::connect(&args.address).await?;
    match args.variant.as_str() {
        "streams" => tasks::run(streams::Caller(connection), args.plan).await,
        "datagrams" => datagrams::run(connection, args.plan).await,
        other => Err(args::unknown(other)),
    }
}
