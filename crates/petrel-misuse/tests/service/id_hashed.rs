use petrel::Error;
use petrel::service::{Ctx, Raw};

#[petrel::service(codec = Raw)]
trait Greeter {
    #[id(5_000)]
    async fn hello(&self, cx: &Ctx, name: String) -> Result<String, Error>;
}

fn main() {}
