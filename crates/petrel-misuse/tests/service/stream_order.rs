use petrel::Error;
use petrel::service::{Ctx, Raw};
use petrel::stream::{Receiver, Sender};

#[petrel::service(codec = Raw)]
trait Words {
    async fn echo(&self, cx: &Ctx, out: Sender<String>, words: Receiver<String>) -> Result<(), Error>;
}

fn main() {}
