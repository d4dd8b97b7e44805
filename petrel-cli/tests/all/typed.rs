//! `petrel list`, and `petrel call` of a method by name.

use petrel::server::RunningServer;
use petrel::service::{Ctx, Raw};
use petrel::stream::{Receiver, Sender};
use petrel::{Context, Error, Server, Status};
use petrel_greeter::Polite;
use petrel_greeter::greeter::GreeterServer;
use serde_json::{Value, json};

use crate::common::{petrel, record, records, stderr, stdout};

/// Starts a server with a typed service, and a method by number.
fn greeter() -> (RunningServer, String) {
    let server = Server::bind("127.0.0.1:0").serve(
        |_| (),
        |endpoint| {
            endpoint.serve(GreeterServer::new(Polite));
            endpoint.on(7, |_, cx, request| request.reply(cx, b"seven"));
        },
    );
    let server = server.start().unwrap();
    let address = server.local_addr().to_string();
    (server, address)
}

#[test]
fn list__names_the_methods() {
    let (_server, address) = greeter();
    let listed = petrel(&["list", &address]);
    let text = stdout(&listed);
    assert!(text.starts_with("greeter.Greeter "), "{text}");
    assert!(text.lines().any(|line| line.starts_with("  Hello  ")), "{text}");
    assert!(text.contains(", prost, idempotent\n"), "{text}");
    assert!(text.contains(", prost, both sides stream\n"), "{text}");
    let [method, stream] = &records(&petrel(&["list", &address, "--json"]))[..] else {
        panic!("two methods")
    };
    let flags = ["client_streams", "server_streams"];
    assert_eq!(
        flags.map(|flag| (&method[flag], &stream[flag])),
        [(&json!(false), &json!(true)); 2]
    );
    let expected = (&json!("greeter.Greeter"), &json!("Hello"), &json!(true));
    assert_eq!((&method["service"], &method["method"], &method["is_idempotent"]), expected);
    assert!(method["envelope"].is_u64() && method["envelope"] != method["number"], "{method}");
}

#[test]
fn call__of_a_method_by_name_with_json() {
    let (_server, address) = greeter();
    let name = "greeter.Greeter/Hello";
    let call = |data: &str| petrel(&["call", &address, name, "--data", data]);
    let reply: Value =
        serde_json::from_str(stdout(&call(r#"{"name": "petrel", "language": "GERMAN"}"#))).unwrap();
    assert_eq!(reply, json!({"message": "Guten Tag, petrel!"}));
    let nobody = call("{}");
    assert_eq!(nobody.status.code(), Some(1));
    assert!(stderr(&nobody).contains("name: nobody to greet"), "{nobody:?}");
    let wrong = call(r#"{"nmae": "petrel"}"#);
    assert!(stderr(&wrong).contains("--data is no greeter.HelloRequest"), "{wrong:?}");
    let unknown = petrel(&["call", &address, "greeter.Greeter/Bye", "--json"]);
    let failure = record(&unknown);
    assert_eq!(failure["status"], "UNIMPLEMENTED", "{failure}");
    let names = "no method greeter.Greeter/Bye, but greeter.Greeter/Hello, greeter.Greeter/Welcome";
    assert!(stderr(&unknown).contains(names), "{unknown:?}");
    assert_eq!(stdout(&petrel(&["call", &address, "--method", "7"])), "seven");
}

/// JSON lines of protobuf's messages, in both directions; the first line that is no message cancels the stream.
#[test]
fn call__of_streams_with_json_lines() {
    let (_server, address) = greeter();
    let call = |data: &str, more: &[&str]| {
        let call = ["call", &address, "greeter.Greeter/Welcome", "--data", data];
        petrel(&[&call[..], more].concat())
    };
    let two = "{\"name\": \"Ada\"}\n\n{\"name\": \"Max\", \"language\": \"GERMAN\"}\n";
    let lines = "{\"message\":\"Hello, Ada!\"}\n{\"message\":\"Guten Tag, Max!\"}\n";
    assert_eq!(stdout(&call(two, &[])), lines);
    let path = std::env::temp_dir().join(format!("petrel-lines-{}", std::process::id()));
    std::fs::write(&path, two).unwrap();
    assert_eq!(stdout(&call(&format!("@{}", path.display()), &[])), lines);
    std::fs::remove_file(&path).unwrap();
    let printed = records(&call(two, &["--json"]));
    let texts: Vec<_> = printed.iter().map(|record| record["text"].as_str()).collect();
    let expected: Vec<_> = lines.lines().map(Some).chain([None]).collect();
    assert_eq!(texts, expected);
    assert_eq!((&printed[2]["status"], &printed[2]["messages"]), (&json!("OK"), &json!(2)));
    let ended = call("{\"name\": \"Ada\"}\n{}", &["--json"]);
    assert_eq!(
        (ended.status.code(), &records(&ended)[1]["status"]),
        (Some(1), &json!("INVALID_ARGUMENT"))
    );
    let wrong = call("{\"nmae\": \"Ada\"}", &[]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(stderr(&wrong).contains("--data is no greeter.HelloRequest"), "{wrong:?}");
}

#[petrel::service(name = "test.Birds", codec = Raw)]
trait Birds {
    async fn watch(&self, cx: &Ctx, place: String, birds: Sender<String>) -> Result<(), Error>;
    async fn count(&self, cx: &Ctx, birds: Receiver<Vec<u8>>) -> Result<String, Error>;
}

struct Coast;

impl Birds for Coast {
    async fn watch(&self, cx: &Ctx, place: String, mut birds: Sender<String>) -> Result<(), Error> {
        for bird in ["tern", "gull"] {
            birds.send(format!("{bird} of the {place}")).await?;
        }
        let tenant = cx.metadata().get("tenant").map(str::to_owned);
        let none = Error::new(Status::Unauthenticated, "who is there?");
        let tenant = tenant.ok_or_else(|| none.with_detail_bytes("test.Why", &[7, 255]))?;
        cx.reply_metadata("seen", tenant)
    }

    async fn count(&self, _: &Ctx, mut birds: Receiver<Vec<u8>>) -> Result<String, Error> {
        let mut lengths = Vec::new();
        while let Some(bird) = birds.next().await {
            lengths.push(bird?.len());
        }
        Ok(format!("{lengths:?}"))
    }
}

#[test]
fn call__of_streams_with_metadata_and_details() {
    let server = Server::bind("127.0.0.1:0");
    let server = server.serve(|_| (), |endpoint| endpoint.serve(BirdsServer::new(Coast)));
    let server = server.start().unwrap();
    let address = server.local_addr().to_string();
    let watch = |more: &[&str]| {
        let call = ["call", &address, "test.Birds/Watch", "--data", "coast"];
        petrel(&[&call[..], more].concat())
    };
    let birds = watch(&["--metadata", "tenant=a"]);
    assert_eq!(stdout(&birds), "tern of the coast\ngull of the coast\n");
    assert_eq!(stderr(&birds), "metadata seen: a\n");
    let refused = watch(&["--json"]);
    assert_eq!(refused.status.code(), Some(1));
    let end = &records(&refused)[2];
    let details = json!([{"name": "test.Why", "hex": "07ff"}]);
    assert_eq!((&end["status"], &end["details"]), (&json!("UNAUTHENTICATED"), &details));
    let count = |data| petrel(&["call", &address, "test.Birds/Count", "--data", data]);
    assert_eq!(stdout(&count("")), "[]\n");
    assert_eq!(stdout(&count("tern\n\ngull\n")), "[4, 0, 4]\n");
}

#[petrel::service(name = "test.Tenants", codec = Raw)]
trait Tenants {
    #[dispatch]
    fn get(&self, cx: &mut Context<'_>, word: String) -> Result<String, Error>;
}

/// Answers with the tenant in reply and metadata, or with an error that has a detail.
struct ByTenant;

impl Tenants for ByTenant {
    fn get(&self, cx: &mut Context<'_>, word: String) -> Result<String, Error> {
        let error = Error::new(Status::Unauthenticated, "who is there?");
        let tenant = cx.metadata().get("tenant").map(str::to_owned);
        let tenant = tenant.ok_or_else(|| error.with_detail_bytes("test.Why", &[7, 255]))?;
        let digest = cx.metadata().get_bytes("digest-bin").unwrap_or_default().to_vec();
        cx.reply_metadata("seen", &tenant)?;
        cx.reply_metadata("digest-bin", digest)?;
        Ok(format!("{tenant}: {word}"))
    }
}

#[test]
fn call__with_metadata_and_details() {
    let server = Server::bind("127.0.0.1:0");
    let server = server.serve(|_| (), |endpoint| endpoint.serve(TenantsServer::new(ByTenant)));
    let server = server.start().unwrap();
    let address = server.local_addr().to_string();
    let call = |more: &[&str]| {
        let call = ["call", &address, "test.Tenants/Get", "--data", "tern"];
        petrel(&[&call[..], more].concat())
    };
    let entries = ["--metadata", "tenant=a=b", "--metadata", "digest-bin=00ff"];
    let reply = call(&entries);
    assert_eq!(stdout(&reply), "a=b: tern");
    assert_eq!(stderr(&reply), "metadata seen: a=b\nmetadata digest-bin: 00ff\n");
    let reply = record(&call(&[&entries[..], &["--json"]].concat()));
    let metadata = json!({"seen": "a=b", "digest-bin": "00ff"});
    assert_eq!((&reply["text"], &reply["metadata"]), (&json!("a=b: tern"), &metadata));
    let refused = call(&[]);
    assert!(stderr(&refused).contains("UNAUTHENTICATED: who is there?"), "{refused:?}");
    assert!(stderr(&refused).ends_with("detail test.Why: 07ff\n"), "{refused:?}");
    let refused = record(&call(&["--json"]));
    assert_eq!(refused["details"], json!([{"name": "test.Why", "hex": "07ff"}]));
    for (entry, why) in [
        ("tenant", "an entry is KEY=VALUE"),
        ("Tenant=a", "is no key of metadata"),
        ("digest-bin=7", "pairs of hexadecimal digits"),
    ] {
        let wrong = call(&["--metadata", entry]);
        assert!(stderr(&wrong).contains(why), "{wrong:?}");
    }
    let large = format!("tenant={}", "x".repeat(600));
    let other = large.replace("tenant", "other");
    let refused = call(&["--metadata", &large, "--metadata", &other]);
    assert!(stderr(&refused).contains("at most 1024 are allowed"), "{refused:?}");
    let by_number = petrel(&["call", &address, "--method", "7", "--metadata", "tenant=a"]);
    assert!(stderr(&by_number).contains("cannot be used with"), "{by_number:?}");
    let nothing = petrel(&["call", &address, "--metadata", "tenant=a"]);
    assert!(stderr(&nothing).contains("SERVICE/METHOD"), "{nothing:?}");
}
