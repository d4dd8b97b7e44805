use petrel::Error;
use petrel::service::{Ctx, Raw};

#[petrel::service(codec = Raw)]
trait Greeter {
    async fn connect(&self, cx: &Ctx, name: String) -> Result<String, Error>;
}

fn main() {}
