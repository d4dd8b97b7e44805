//! Programs that misuse Petrel and must not compile: `tests/ui`, each with the compiler's words.
//!
//! They stand in a package of their own, because `trybuild` first compiles all that their package is tested with: beside the
//! library's own tests 24 s of a first run on two CPUs, here 15.
