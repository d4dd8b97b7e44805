//! Misuse that must not compile, with the expected error messages.

#[test]
fn misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}

#[test]
fn services_with_mistakes_do_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/service/*.rs");
}
