//! The default endpoint, compiled with the library in builds for debugging.
//!
//! The endpoint is generic, and every program would compile all of it again: `examples/hello.rs` took 2.1 s, and takes
//! 0.5 s with this file. A debug build shares generic code compiled in a dependency, and a list of the methods here is
//! enough. Optimised builds share no such code, and compile nothing here.

use super::{Endpoint, Stop};

/// The methods that programs use most, named here to be compiled. Programs do not link unused ones.
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
