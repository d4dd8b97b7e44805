use petrel::Error;
use petrel::service::{Ctx, Raw};

#[petrel::service(codec = Raw)]
trait Greeter {
    #[cfg(unix)]
    async fn hello(&self, cx: &Ctx, name: String) -> Result<String, Error>;
}

fn main() {}
