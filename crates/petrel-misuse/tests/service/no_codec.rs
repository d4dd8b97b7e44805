use petrel::Error;
use petrel::service::{Ctx, Raw};

struct Name(String);

#[petrel::service(codec = Raw)]
trait Greeter {
    async fn hello(&self, cx: &Ctx, name: Name) -> Result<String, Error>;
}

fn main() {}
