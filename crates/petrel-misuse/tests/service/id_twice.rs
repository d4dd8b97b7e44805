use petrel::Error;
use petrel::service::{Ctx, Raw};

#[petrel::service(codec = Raw)]
trait Greeter {
    #[id(1)]
    async fn hello(&self, cx: &Ctx, name: String) -> Result<String, Error>;
    #[id(1)]
    async fn bye(&self, cx: &Ctx, name: String) -> Result<String, Error>;
}

fn main() {}
