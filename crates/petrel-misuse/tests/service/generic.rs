use petrel::Error;
use petrel::service::{Ctx, Raw};

#[petrel::service(codec = Raw)]
trait Greeter {
    async fn hello<T>(&self, cx: &Ctx, name: T) -> Result<T, Error>;
}

fn main() {}
