use petrel::Error;
use petrel::service::{Ctx, Raw};

#[petrel::service(codec = Raw)]
trait Greeter {
    async fn hello(&self, cx: &Ctx, name: String) -> Result<String, Error>;
}

struct Polite;

impl Greeter for Polite {
    async fn hello(&self, _: &Ctx, name: u64) -> Result<String, Error> {
        Ok(name.to_string())
    }
}

fn main() {}
