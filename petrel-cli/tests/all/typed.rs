//! `petrel list`, and `petrel call` of a method by name.

use petrel::Server;
use petrel::server::RunningServer;
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
