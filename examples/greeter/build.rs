//! Compiles the definition of the service.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    petrel_build::compile(&["proto/greeter.proto"], &["proto"])
}
