use petrel::service::{Ctx, Raw};
use petrel::{Context, Error};

#[petrel::service(codec = Raw)]
trait Greeter {
    #[dispatch]
    #[id(65000)]
    fn hello(&self, cx: &mut Context<'_>, name: String) -> Result<String, Error>;
    #[idempotent]
    async fn hello_later(&self, cx: &Ctx, name: String) -> Result<String, Error>;
}

struct Polite;

impl Greeter for Polite {
    fn hello(&self, _: &mut Context<'_>, name: String) -> Result<String, Error> {
        Ok(name)
    }

    async fn hello_later(&self, _: &Ctx, name: String) -> Result<String, Error> {
        Ok(name)
    }
}

fn main() {}
