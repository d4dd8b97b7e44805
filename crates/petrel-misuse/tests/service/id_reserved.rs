use petrel::Error;
use petrel::service::{Ctx, Raw};

#[petrel::service(codec = Raw)]
trait Greeter {
    #[id(65_535)]
    async fn hello(&self, cx: &Ctx, name: String) -> Result<String, Error>;
}

fn main() {}
