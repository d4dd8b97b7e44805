//! Programs that misuse Petrel and must not compile: `tests/ui`, with the expected error messages.
//!
//! They stand in a separate package, because `trybuild` first compiles all dependencies of its package's
//! tests. Beside the library's own tests a first run took 24 s on two CPUs, instead of 15 s here.
