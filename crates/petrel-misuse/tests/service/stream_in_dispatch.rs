use petrel::Error;
use petrel::service::Raw;
use petrel::stream::Sender;

#[petrel::service(codec = Raw)]
trait Words {
    #[dispatch]
    fn split(&self, cx: &mut petrel::Context<'_>, text: String, words: Sender<String>) -> Result<(), Error>;
}

fn main() {}
