//! The server, and the media driver in its process.

use std::ffi::CString;
use std::hint;

use peers_common::{BULK_BYTES, Failure, ServerArgs, Sink, ready};
use rusteron_media_driver::{
    Aeron, AeronDriver, AeronDriverContext, AeronIdleStrategyKind, bindings::aeron_threading_mode_t,
};

use crate::{
    BULK_STREAM, ECHO_STREAM, FRAGMENTS_MAX, REPLY_STREAM, offer, publication, subscription,
};

/// Room for several bulk requests; Aeron demands that a message fits into an eighth.
const TERM_BYTES: usize = 64 << 20;

/// Fragments of bulk requests are as large as Aeron allows; the default is 1408 bytes.
const MTU_BYTES: usize = 65_504;

pub(crate) fn serve(args: ServerArgs) -> Result<(), Failure> {
    let directory = args.scratch.join("aeron");
    let directory = directory.to_str().ok_or("the directory's name is not UTF-8")?;
    let driver = AeronDriver::launch_embedded_guard(driver_context(directory)?, false);
    let aeron = connect(directory)?;
    let echoes = subscription(&aeron, ECHO_STREAM)?;
    let bulks = subscription(&aeron, BULK_STREAM)?;
    let replies = publication(&aeron, REPLY_STREAM)?;
    ready(directory);

    let mut sink = Sink::default();
    let mut failure = None;
    while !driver.is_finished() {
        let echoed = echoes
            .poll_fn(|request, _| fail(&mut failure, offer(&replies, request)), FRAGMENTS_MAX)?;
        let taken = bulks.poll_fn(
            |piece, _| {
                sink.take(piece);
                if sink.length() >= BULK_BYTES {
                    let reply = std::mem::take(&mut sink).reply();
                    fail(&mut failure, offer(&replies, &reply));
                }
            },
            FRAGMENTS_MAX,
        )?;
        if let Some(failure) = failure {
            return Err(failure);
        }
        if echoed == 0 && taken == 0 {
            hint::spin_loop();
        }
    }
    Err("the media driver has ended".into())
}

/// Keeps the first failure, because handlers of messages have no result.
fn fail(failure: &mut Option<Failure>, result: Result<(), Failure>) {
    if failure.is_none() {
        *failure = result.err();
    }
}

/// The driver shares the server's CPU, and therefore runs in a single, mostly sleeping thread.
fn driver_context(directory: &str) -> Result<AeronDriverContext, Failure> {
    let context = AeronDriverContext::new()?;
    context.set_dir(&CString::new(directory)?)?;
    context.set_dir_delete_on_start(true)?;
    context.set_dir_delete_on_shutdown(true)?;
    context.set_threading_mode(aeron_threading_mode_t::AERON_THREADING_MODE_SHARED)?;
    context.set_shared_idle_strategy_kind(AeronIdleStrategyKind::Sleeping)?;
    context.set_shared_idle_strategy_init_args(c"1ms")?;
    context.set_ipc_term_buffer_length(TERM_BYTES)?;
    context.set_ipc_mtu_length(MTU_BYTES)?;
    Ok(context)
}

/// Retries, because the driver has just been started and needs time.
fn connect(directory: &str) -> Result<Aeron, Failure> {
    let started = std::time::Instant::now();
    loop {
        match Aeron::connect_dir(directory) {
            Ok(aeron) => return Ok(aeron),
            Err(error) if started.elapsed() > crate::PATIENCE => return Err(error.into()),
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(10)),
        }
    }
}
