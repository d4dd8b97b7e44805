//! The default endpoint, compiled with the library in builds for debugging.
//!
//! The endpoint is generic, so each program would compile the whole of it again: `examples/hello.rs` took 2.1 s so, and takes
//! 0.5 s now. A debug build shares generic code that a crate below has compiled, so a list of the methods here is enough.
//! Optimised builds share none of it, and compile none of it here.

use super::{Endpoint, Stop};

/// What programs use most, named so that it is compiled here. Programs link none of it for this alone.
#[allow(dead_code, reason = "the compiler compiles what a static names, used or not")]
static COMPILED: fn(&mut Endpoint, &Stop) = |endpoint, stop| {
    endpoint.run_once();
    endpoint.run(stop);
    let _ = (
        <Endpoint>::new,
        <Endpoint>::begin_drain,
        <Endpoint>::close,
        <Endpoint>::connect,
        <Endpoint>::connect_wait,
        <Endpoint>::context,
        <Endpoint>::drain,
        <Endpoint>::handle,
        <Endpoint>::session_state,
        <Endpoint>::start_multicast,
        <Endpoint>::stats,
    );
    drop::<Option<Endpoint>>(None);
};
