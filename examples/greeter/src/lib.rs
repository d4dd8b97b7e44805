//! A greeter, defined by `proto/greeter.proto`: `cargo run -p petrel-greeter`.

use petrel::service::Ctx;
use petrel::stream::{Receiver, Sender};
use petrel::{Error, Status};

/// The messages and the service of the package.
#[allow(missing_docs, reason = "fields without comments in the definition")]
pub mod greeter {
    include!(concat!(env!("OUT_DIR"), "/greeter.rs"));
}

use greeter::{Greeter, HelloReply, HelloRequest, Language};

/// Greets in the caller's language.
#[derive(Debug)]
pub struct Polite;

impl Greeter for Polite {
    async fn hello(&self, _: &Ctx, request: HelloRequest) -> Result<HelloReply, Error> {
        let greeting = match request.language() {
            _ if request.name.is_empty() => {
                return Err(Error::new(Status::InvalidArgument, "name: nobody to greet"));
            }
            Language::English => "Hello",
            Language::German => "Guten Tag",
        };
        Ok(HelloReply { message: format!("{greeting}, {}!", request.name) })
    }

    async fn welcome(
        &self,
        cx: &Ctx,
        mut people: Receiver<HelloRequest>,
        mut greetings: Sender<HelloReply>,
    ) -> Result<(), Error> {
        while let Some(person) = people.next().await {
            greetings.send(self.hello(cx, person?).await?).await?;
        }
        Ok(())
    }
}
