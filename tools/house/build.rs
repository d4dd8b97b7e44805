//! Hands the name of the target platform to the crate, which asks Cargo for that platform's dependencies.

fn main() {
    let target = std::env::var("TARGET").expect("Cargo sets TARGET for build scripts");
    println!("cargo:rustc-env=PETREL_TARGET={target}");
    println!("cargo:rerun-if-changed=build.rs");
}
