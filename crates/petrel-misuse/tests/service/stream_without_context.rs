use petrel::Error;
use petrel::service::Raw;
use petrel::stream::Receiver;

#[petrel::service(codec = Raw)]
trait Words {
    async fn join(&self, words: Receiver<String>) -> Result<String, Error>;
}

fn main() {}
