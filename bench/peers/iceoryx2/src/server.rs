//! The server, which polls its two services in turn.

use std::hint;
use std::time::Duration;

use peers_common::{Failure, ServerArgs, Sink, ready};

use crate::{bulk_service, echo_service, node};

/// Turns between two checks whether the process shall end.
const TURNS: u32 = 1 << 16;

pub(crate) fn serve(args: ServerArgs) -> Result<(), Failure> {
    let directory = args.scratch.to_str().ok_or("the directory's name is not UTF-8")?;
    let node = node(directory)?;
    let (echoes, bulks) = (echo_service(&node)?, bulk_service(&node)?);
    let (echoes, bulks) = (echoes.server_builder().create()?, bulks.server_builder().create()?);
    ready(directory);
    // An error is the signal to end.
    while node.wait(Duration::ZERO).is_ok() {
        for _ in 0..TURNS {
            if let Some(request) = echoes.receive()? {
                request.loan_uninit()?.write_payload(*request.payload()).send()?;
            } else if let Some(request) = bulks.receive()? {
                let reply = Sink::reply_to(request.payload());
                request.loan_uninit()?.write_payload(reply).send()?;
            } else {
                hint::spin_loop();
            }
        }
    }
    Ok(())
}
