use petrel::Error;
use petrel::service::{Ctx, Raw};

#[petrel::service(codec = Raw)]
trait Greeter {
    #[dispatch]
    unsafe fn hello(&self, cx: &Ctx, name: String) -> Result<String, Error>;
}

fn main() {}
