//! Programs that misuse Petrel and must not compile: `tests/ui`, each with the compiler's words.
//!
//! They stand in a package of their own, because the tool that compiles them compiles all that their package is tested
//! with, too: with the library's own tests, half a minute of a build.
