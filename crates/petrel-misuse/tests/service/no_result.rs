use petrel::Error;
use petrel::service::{Ctx, Raw};

#[petrel::service(codec = Raw)]
trait Greeter {
    async fn hello(&self, cx: &Ctx, name: String) -> String;
}

fn main() {}
