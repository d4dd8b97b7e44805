//! `petrel list`, and `petrel call` of a method by name.

use petrel::server::RunningServer;
use petrel::service::Raw;
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
    assert!(text.contains(", prost, idempotent"), "{text}");
    let [method] = &records(&petrel(&["list", &address, "--json"]))[..] else {
        panic!("one method")
    };
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
    assert!(stderr(&unknown).contains("no method greeter.Greeter/Bye, but greeter.Greeter/Hello"));
    assert_eq!(stdout(&petrel(&["call", &address, "--method", "7"])), "seven");
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
