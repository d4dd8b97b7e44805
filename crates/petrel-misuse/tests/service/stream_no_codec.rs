use petrel::Error;
use petrel::service::{Ctx, Raw};
use petrel::stream::Sender;

struct Word(String);

#[petrel::service(codec = Raw)]
trait Words {
    async fn split(&self, cx: &Ctx, text: String, words: Sender<Word>) -> Result<(), Error>;
}

fn main() {}
