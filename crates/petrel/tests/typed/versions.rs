//! Clients ahead of their server, and behind: no call reaches another method's handler.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use petrel::service::{Ctx, Raw, ServedMethod, ServedService, parse};
use petrel::task::Handle;
use petrel::{Client, Error, Execution, Server, Status};

use crate::serve;

/// A service of one text method, in two versions whose numbers are exchanged.
mod first {
    use super::{Ctx, Error, Raw};

    #[petrel::service(name = "test.Words", version = "1", codec = Raw)]
    pub(super) trait Words {
        #[id(1)]
        async fn read(&self, cx: &Ctx, word: String) -> Result<String, Error>;
        #[id(2)]
        async fn erase(&self, cx: &Ctx, word: String) -> Result<String, Error>;
        #[id(3)]
        async fn count(&self, cx: &Ctx, word: String) -> Result<String, Error>;
    }

    pub(super) struct Book;

    impl Words for Book {
        async fn read(&self, _: &Ctx, word: String) -> Result<String, Error> {
            Ok(format!("read {word}"))
        }

        async fn erase(&self, _: &Ctx, word: String) -> Result<String, Error> {
            Ok(format!("erase {word}"))
        }

        async fn count(&self, _: &Ctx, word: String) -> Result<String, Error> {
            Ok(format!("count {word}"))
        }
    }
}

mod second {
    use super::{Ctx, Error, Raw};

    #[petrel::service(name = "test.Words", version = "2", codec = Raw)]
    pub(super) trait Words {
        #[id(2)]
        async fn read(&self, cx: &Ctx, word: String) -> Result<String, Error>;
        #[id(1)]
        async fn erase(&self, cx: &Ctx, word: String) -> Result<String, Error>;
        #[id(3)]
        async fn count(&self, cx: &Ctx, word: Vec<u8>) -> Result<String, Error>;
        #[id(4)]
        async fn sort(&self, cx: &Ctx, word: String) -> Result<String, Error>;
    }

    pub(super) struct Book;

    impl Words for Book {
        async fn read(&self, _: &Ctx, word: String) -> Result<String, Error> {
            Ok(format!("read {word}, 2"))
        }

        async fn erase(&self, _: &Ctx, word: String) -> Result<String, Error> {
            Ok(format!("erase {word}, 2"))
        }

        async fn count(&self, _: &Ctx, word: Vec<u8>) -> Result<String, Error> {
            Ok(format!("count {}, 2", word.len()))
        }

        async fn sort(&self, _: &Ctx, word: String) -> Result<String, Error> {
            Ok(format!("sort {word}, 2"))
        }
    }
}

fn word() -> String {
    "tern".to_owned()
}

fn refused<T: std::fmt::Debug>(outcome: Result<T, Error>) -> String {
    let error = outcome.unwrap_err();
    let expected = (Status::Unimplemented, Execution::NotSent);
    assert_eq!((error.status, error.execution), expected, "{error}");
    error.message.clone()
}

#[test]
fn a_client_behind_its_server__gets_methods_by_name_or_both_versions() {
    let (_server, client) = serve(|| second::WordsServer::new(second::Book));
    let words = first::WordsClient::new(client);
    assert_eq!(words.read(word()).wait().unwrap(), "read tern, 2");
    assert_eq!(words.erase(word()).wait().unwrap(), "erase tern, 2");
    // Calls by number have the server's numbers.
    for (number, reply) in [(1, "erase tern, 2"), (2, "read tern, 2"), (3, "count 4, 2")] {
        assert_eq!(words.client().call(number, "tern").wait().unwrap(), reply.as_bytes());
    }
    let why = refused(words.count(word()).wait());
    assert!(why.starts_with("test.Words/Count: the server's version 2 has messages of bytes "));
    assert!(why.ends_with(", and the client's version 1 of text 0000000000000000"), "{why}");
}

#[test]
fn a_client_ahead_of_its_server__gets_methods_by_name_or_both_versions() {
    let (_server, client) = serve(|| first::WordsServer::new(first::Book));
    let words = second::WordsClient::new(client);
    assert_eq!(words.read(word()).wait().unwrap(), "read tern");
    assert_eq!(words.erase(word()).wait().unwrap(), "erase tern");
    let why = refused(words.sort(word()).wait());
    let expected =
        "the server's test.Words of version 1 has no method Sort; the client's version is 2";
    assert_eq!(why, expected);
    assert!(refused(words.count(word().into_bytes()).wait()).contains("version 1"));
}

#[petrel::service(name = "test.Other", codec = Raw)]
trait Other {
    async fn read(&self, cx: &Ctx, word: String) -> Result<String, Error>;
    #[id(1)]
    async fn copy(&self, cx: &Ctx, word: String) -> Result<String, Error>;
}

impl Other for first::Book {
    async fn read(&self, _: &Ctx, word: String) -> Result<String, Error> {
        Ok(format!("other {word}"))
    }

    async fn copy(&self, _: &Ctx, word: String) -> Result<String, Error> {
        Ok(word)
    }
}

#[test]
fn a_server_without_the_service__names_its_services() {
    let (_server, client) = serve(|| first::WordsServer::new(first::Book));
    let why = refused(OtherClient::new(client).read(word()).wait());
    assert!(why.starts_with("the server has no service test.Other, which the client has in "));
    assert!(why.ends_with(": it serves test.Words"), "{why}");
}

/// Its numbers may be those of anything: a typed client does not call them.
#[test]
fn a_server_by_numbers__has_no_service() {
    let server = Server::in_process();
    let server =
        server.serve(|_| (), |endpoint| endpoint.on(1, |_, cx, request| request.reply(cx, b"raw")));
    let server = server.start().unwrap();
    let other = OtherClient::new(server.client().unwrap());
    for outcome in [other.read(word()).wait(), other.copy(word()).wait()] {
        let why = refused(outcome);
        assert!(why.ends_with(": it serves no named one"), "{why}");
    }
    assert_eq!(other.client().call(1, "").wait().unwrap(), b"raw");
}

/// The call must not overtake the table, which is on its way to the endpoint.
#[test]
fn a_call_of_another_thread__follows_its_table() {
    let server = Server::bind("127.0.0.1:0");
    let server =
        server.serve(|_| (), |endpoint| endpoint.serve(second::WordsServer::new(second::Book)));
    let server = server.start().unwrap();
    let nexus = petrel::Nexus::builder().start().unwrap();
    let mut endpoint = nexus.endpoint(Default::default()).unwrap();
    let (handle, address): (Handle, _) = (endpoint.handle(), server.local_addr());
    let client = endpoint.block_on(async move {
        let client = handle.client([address], Default::default());
        client.health(None).wait_for_ready().await.unwrap();
        client
    });
    let make = move || first::WordsClient::new(client).read(word());
    let call = std::thread::spawn(make).join().unwrap();
    assert_eq!(endpoint.block_on(call).unwrap(), "read tern, 2");
}

/// Two versions of a service: calls of a method may run twice by the later one alone.
mod twice {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::{Ctx, Error, Raw, Status};

    #[petrel::service(name = "test.Twice", codec = Raw)]
    pub(super) trait Earlier {
        async fn add(&self, cx: &Ctx, word: String) -> Result<String, Error>;
    }

    #[petrel::service(name = "test.Twice", codec = Raw)]
    pub(super) trait Later {
        #[idempotent]
        async fn add(&self, cx: &Ctx, word: String) -> Result<String, Error>;
    }

    pub(super) struct Failing(pub(super) Arc<AtomicU32>);

    impl Failing {
        fn fail(&self) -> Result<String, Error> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Err(Error::new(Status::Unavailable, "it may have run"))
        }
    }

    impl Earlier for Failing {
        async fn add(&self, _: &Ctx, _: String) -> Result<String, Error> {
            self.fail()
        }
    }

    impl Later for Failing {
        async fn add(&self, _: &Ctx, _: String) -> Result<String, Error> {
            self.fail()
        }
    }
}

#[test]
fn a_method_that_is_idempotent_by_the_client_alone__runs_once() {
    let count = Arc::new(AtomicU32::new(0));
    let made = Arc::clone(&count);
    let (_server, client) =
        serve(move || twice::EarlierServer::new(twice::Failing(Arc::clone(&made))));
    twice::LaterClient::new(client).add(word()).wait().unwrap_err();
    assert_eq!(count.load(Ordering::Relaxed), 1);
    let made = Arc::clone(&count);
    let (_server, client) =
        serve(move || twice::LaterServer::new(twice::Failing(Arc::clone(&made))));
    twice::LaterClient::new(client).add(word()).wait().unwrap_err();
    assert!(count.load(Ordering::Relaxed) > 2, "retried, as both ends declare");
}

/// Two services with the number 1 cannot share an endpoint; at a client, each call finds its server's number.
#[test]
fn services_with_the_same_numbers__at_one_client() {
    let (_server, client) = serve(|| OtherServer::new(first::Book));
    let _words = first::WordsClient::new(client.clone());
    let other = OtherClient::new(client.clone());
    assert_eq!(other.copy(word()).wait().unwrap(), "tern");
    assert_eq!(other.read(word()).wait().unwrap(), "other tern");
    assert!(refused(first::WordsClient::new(client).read(word()).wait()).contains("test.Words"));
}

/// The servers of a client may have different versions, as during an upgrade: calls go to a server that has their method.
#[test]
fn calls__go_to_the_servers_that_have_the_method() {
    let old = Server::bind("127.0.0.1:0");
    let old = old.serve(|_| (), |endpoint| endpoint.serve(first::WordsServer::new(first::Book)));
    let new = Server::bind("127.0.0.1:0");
    let new = new.serve(|_| (), |endpoint| endpoint.serve(second::WordsServer::new(second::Book)));
    let (old, new) = (old.start().unwrap(), new.start().unwrap());
    let client = Client::connect_wait([old.local_addr(), new.local_addr()]).unwrap();
    let words = second::WordsClient::new(client.clone());
    while client.stats().servers_ready < 2 {
        std::thread::yield_now();
    }
    for _ in 0..20 {
        assert_eq!(words.sort(word()).wait().unwrap(), "sort tern, 2");
        let hedged = words.sort(word()).hedge_after(std::time::Duration::ZERO);
        assert_eq!(hedged.wait().unwrap(), "sort tern, 2");
        let read = words.read(word()).wait().unwrap();
        assert!(["read tern", "read tern, 2"].contains(&&*read), "{read}");
    }
}

/// A server that is replaced by another version is asked again.
#[test]
fn a_session_to_a_later_version__is_asked_again() {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::listen_on(socket.try_clone().unwrap());
    let server =
        server.serve(|_| (), |endpoint| endpoint.serve(first::WordsServer::new(first::Book)));
    let server = server.start().unwrap();
    let words = first::WordsClient::connect_wait(server.local_addr()).unwrap();
    assert_eq!(words.erase(word()).wait().unwrap(), "erase tern");
    drop(server);
    let server = Server::listen_on(socket);
    let server =
        server.serve(|_| (), |endpoint| endpoint.serve(second::WordsServer::new(second::Book)));
    let _server = server.start().unwrap();
    let erased = loop {
        match words.erase(word()).wait_for_ready().idempotent().wait() {
            Ok(reply) => break reply,
            Err(error) => assert_eq!(error.status, Status::Unavailable, "{error}"),
        }
    };
    assert_eq!(erased, "erase tern, 2");
}

/// Two versions of a message whose bytes would be read wrongly.
mod lengths {
    use super::{Ctx, Error};
    use petrel::service::Postcard;
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    pub(super) struct Length {
        pub(super) metres: u32,
    }

    #[petrel::service(name = "test.Lengths", codec = Postcard)]
    pub(super) trait Lengths {
        async fn add(&self, cx: &Ctx, length: Length) -> Result<u32, Error>;
    }

    pub(super) mod later {
        use super::{Ctx, Deserialize, Error, Postcard, Serialize};

        #[derive(Serialize, Deserialize)]
        pub(in super::super) struct Length {
            pub(in super::super) feet: u32,
        }

        #[petrel::service(name = "test.Lengths", codec = Postcard)]
        pub(in super::super) trait Lengths {
            async fn add(&self, cx: &Ctx, length: Length) -> Result<u32, Error>;
        }

        pub(in super::super) struct Sum;

        impl Lengths for Sum {
            async fn add(&self, _: &Ctx, length: Length) -> Result<u32, Error> {
                Ok(length.feet)
            }
        }
    }
}

#[test]
fn a_message_with_another_field__is_another_message() {
    let (_server, client) = serve(|| lengths::later::LengthsServer::new(lengths::later::Sum));
    let later = lengths::later::LengthsClient::new(client.clone());
    assert_eq!(later.add(lengths::later::Length { feet: 5 }).wait().unwrap(), 5);
    let length = lengths::Length { metres: 5 };
    let why = refused(lengths::LengthsClient::new(client).add(length).wait());
    assert!(why.starts_with("test.Lengths/Add: the server's version "), "{why}");
}

#[test]
fn tables__name_the_methods_of_all_services() {
    let server = Server::in_process().serve(
        |_| (),
        |endpoint| {
            endpoint.serve(first::WordsServer::new(first::Book));
            endpoint.on(9, |_, cx, request| request.reply(cx, b""));
        },
    );
    let server = server.start().unwrap();
    let client = server.client().unwrap();
    let tables = client.call(petrel::endpoint::HEALTH_METHOD, [3]).wait().unwrap();
    let services: Vec<ServedService> = parse(&tables).expect("tables");
    let [words] = &services[..] else { panic!("one service") };
    assert_eq!((&*words.name, &*words.version), ("test.Words", "1"));
    let method = |method: &ServedMethod| (method.name.clone(), method.number, method.codec.clone());
    let methods: Vec<_> = words.methods.iter().map(method).collect();
    let expected = [("Read", 1), ("Erase", 2), ("Count", 3)];
    assert_eq!(methods, expected.map(|(name, number)| (name.into(), number, "text".into())));
}

#[test]
fn serve__of_an_id_in_use() {
    let server = Server::in_process().serve(
        |_| (),
        |endpoint| {
            endpoint.serve(first::WordsServer::new(first::Book));
            endpoint.serve(OtherServer::new(first::Book));
        },
    );
    let error = server.start().map(drop).unwrap_err();
    assert!(error.to_string().contains("panicked"), "{error}");
    let server = Server::in_process().serve(
        |_| (),
        |endpoint| {
            endpoint.serve(first::WordsServer::new(first::Book));
            endpoint.on(1, |_, cx, request| request.reply(cx, b"raw"));
        },
    );
    server.start().map(drop).unwrap_err();
}
