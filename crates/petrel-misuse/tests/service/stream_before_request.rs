use petrel::Error;
use petrel::service::{Ctx, Raw};
use petrel::stream::Receiver;

#[petrel::service(codec = Raw)]
trait Words {
    async fn join(&self, cx: &Ctx, words: Receiver<String>, with: String) -> Result<String, Error>;
}

fn main() {}
