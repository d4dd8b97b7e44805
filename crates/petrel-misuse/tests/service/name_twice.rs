use petrel::Error;
use petrel::service::{Ctx, Raw};

#[petrel::service(codec = Raw)]
trait Greeter {
    async fn say_hello(&self, cx: &Ctx, name: String) -> Result<String, Error>;
    async fn say__hello(&self, cx: &Ctx, name: String) -> Result<String, Error>;
}

fn main() {}
