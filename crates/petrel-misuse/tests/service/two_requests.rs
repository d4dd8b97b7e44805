use petrel::Error;
use petrel::service::{Ctx, Raw};

#[petrel::service(codec = Raw)]
trait Words {
    async fn join(&self, cx: &Ctx, first: String, second: String) -> Result<String, Error>;
}

fn main() {}
