//! Streams, and calls from servers to clients, between processes with credentials, over every medium.

use petrel::Error;
use petrel::client::wait;
use petrel::service::{Ctx, Raw};
use petrel::stream::{Receiver, Sender};
use petrel::{Client, Server, Status};

use crate::calls::World;
use crate::common::media;

#[petrel::service(codec = Raw)]
trait Words {
    /// Returns the caller's name and answer, then each message in a piece of its own.
    async fn echo(
        &self,
        cx: &Ctx,
        words: Receiver<Vec<u8>>,
        echoed: Sender<Vec<u8>>,
    ) -> Result<(), Error>;
    /// Asks the caller, and returns the answer.
    async fn ask(&self, cx: &Ctx, word: String) -> Result<String, Error>;
}

#[petrel::service(codec = Raw)]
trait Answers {
    async fn answer(&self, cx: &Ctx, word: String) -> Result<String, Error>;
}

struct Plain;

fn who(cx: &Ctx) -> String {
    let peer = cx.peer().expect("the session is open");
    let identity = peer.identity.as_deref().expect("the peer has proven who it is");
    format!("{} {}", peer.medium, identity.spiffe_id.as_deref().unwrap())
}

impl Words for Plain {
    async fn echo(
        &self,
        cx: &Ctx,
        mut words: Receiver<Vec<u8>>,
        mut echoed: Sender<Vec<u8>>,
    ) -> Result<(), Error> {
        let answer = AnswersClient::new(cx.caller()?).answer("two".to_owned()).await?;
        echoed.send(format!("{}: {answer}", who(cx)).into_bytes()).await?;
        while let Some(word) = words.next().await {
            echoed.send(word?).await?;
        }
        Ok(())
    }

    async fn ask(&self, cx: &Ctx, word: String) -> Result<String, Error> {
        AnswersClient::new(cx.caller()?).answer(word).await
    }
}

impl Answers for Plain {
    async fn answer(&self, cx: &Ctx, word: String) -> Result<String, Error> {
        Ok(format!("{word} of {}", who(cx)))
    }
}

#[test]
fn streams_and_calls_back__over_every_medium_in_tls() {
    let world = World::new();
    let (server, admin) = (world.credentials("server"), world.credentials("admin"));
    let server = Server::bind("127.0.0.1:0").credentials(server);
    let server = server.serve(|_| (), |endpoint| endpoint.serve(WordsServer::new(Plain)));
    let server = server.start().unwrap();
    let mut idle = Vec::new();
    for (medium, transports) in media() {
        let client = Client::builder().credentials(admin.clone()).transports(transports);
        let client = client.serve(|callbacks| callbacks.serve(AnswersServer::new(Plain)));
        let client = WordsClient::new(client.connect_wait(server.local_addr()).unwrap());
        wait(async {
            let (mut words, mut echoed) = client.echo().metadata("a", "b").start().await.unwrap();
            let name = String::from_utf8(echoed.next().await.unwrap().unwrap()).unwrap();
            let answer = format!("two of {medium} spiffe://test/server");
            assert_eq!(name, format!("{medium} spiffe://test/admin: {answer}"));
            for size in [0, 1, 5_000, 300_000] {
                let word: Vec<u8> = (0..size).map(|at| at as u8).collect();
                words.send(&word).await.unwrap();
                assert!(echoed.next().await.unwrap().unwrap() == word, "{medium} {size}");
            }
            words.finish();
            assert!(echoed.next().await.is_none(), "{medium}");
            let answer = client.ask(String::from("one")).await.unwrap();
            assert_eq!(answer, format!("one of {medium} spiffe://test/server"));
            let (_, mut echoed) = client.echo().start().await.unwrap();
            echoed.next().await.unwrap().unwrap();
            idle.push((client.echo().start().await.unwrap(), client));
        });
    }
    server.stop();
    for ((mut words, mut echoed), _client) in idle {
        wait(async {
            let error = loop {
                match echoed.next().await.expect("an end with a reason") {
                    Ok(_) => {}
                    Err(error) => break error,
                }
            };
            assert_eq!(error.status, Status::Unavailable, "{error}");
            assert!(echoed.next().await.is_none(), "one end");
            assert_eq!(words.send(vec![1]).await.unwrap_err().status, Status::Unavailable);
        });
    }
}
