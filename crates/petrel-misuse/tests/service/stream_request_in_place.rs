use petrel::Error;
use petrel::service::{Ctx, Raw};
use petrel::stream::Sender;

#[petrel::service(codec = Raw)]
trait Words {
    async fn split(&self, cx: &Ctx, text: &str, words: Sender<String>) -> Result<(), Error>;
}

fn main() {}
