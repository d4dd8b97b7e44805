//! `petrel index`: a server process, and the subcommands that call it.

use crate::common::{Server, petrel, record, records, stderr, stdout};
use serde_json::json;

fn start(arguments: &[&str]) -> Server {
    Server::of_service("index", &[&["--listen", "127.0.0.1:0"], arguments].concat())
}

#[test]
fn words__are_put_found_scanned_and_deleted() {
    let server = start(&["--dispatch", "2", "--workers", "1"]);
    for (key, value) in [("3", "30"), ("1", "10"), ("0x2", "0x14")] {
        assert_eq!(stdout(&server.run(&["put", key, value])), "new\n");
    }
    assert_eq!(stdout(&server.run(&["put", "1", "11"])), "replaced\n");
    assert_eq!(stdout(&server.run(&["get", "2"])), "20\n");
    let actual = record(&server.run(&["get", "1", "--json", "--endpoint", "1"]));
    assert_eq!(actual, json!({ "key": "1", "found": true, "value": 11 }));
    assert_eq!(stdout(&server.run(&["scan"])), "1\t11\n2\t20\n3\t30\n");
    assert_eq!(stdout(&server.run(&["scan", "--after", "1", "--limit", "1"])), "2\t20\n");
    let pairs = records(&server.run(&["scan", "--from", "2", "--json"]));
    assert_eq!(pairs, [json!({ "key": 2, "value": 20 }), json!({ "key": 3, "value": 30 })]);
    let sum = record(&server.run(&["scan", "--after", "1", "--sum", "--json"]));
    assert_eq!(sum, json!({ "found": 2, "sum": 50 }));
    assert_eq!(stdout(&server.run(&["delete", "2"])), "deleted\n");
    let gone = server.run(&["get", "2"]);
    assert_eq!((gone.status.code(), stderr(&gone)), (Some(1), "petrel: 2 has no value\n"));
    assert_eq!(server.run(&["delete", "2"]).status.code(), Some(1));
    let status = record(&server.run(&["status", "--json"]));
    assert_eq!((&status["word_keys"], &status["requests_put_word"]), (&json!(2), &json!(4)));
}

#[test]
fn bytes__are_put_found_scanned_and_deleted() {
    let server = start(&["--workers", "1", "--transport", "udp"]);
    for (key, value) in [("petrel", "seabird"), ("albatross", ""), ("pelican", "waterbird")] {
        assert_eq!(stdout(&server.run(&["put", "--bytes", key, value])), "new\n");
    }
    assert_eq!(stdout(&server.run(&["get", "--bytes", "petrel"])), "seabird\n");
    let scan = server.run(&["scan", "--bytes", "--from", "p"]);
    assert_eq!(stdout(&scan), "pelican\twaterbird\npetrel\tseabird\n");
    let pairs = records(&server.run(&["scan", "--bytes", "--limit", "1", "--json"]));
    assert_eq!(pairs, [json!({ "key": "albatross", "value": "" })]);
    assert_eq!(stdout(&server.run(&["delete", "--bytes", "petrel"])), "deleted\n");
    assert_eq!(server.run(&["get", "--bytes", "petrel"]).status.code(), Some(1));
}

#[test]
fn bad_input__has_a_clear_error() {
    let server = start(&["--words-max", "1"]);
    assert_eq!(server.run(&["put", "1", "1"]).status.code(), Some(0));
    let full = server.run(&["put", "2", "2", "--json"]);
    assert_eq!(
        (full.status.code(), &record(&full)["status"]),
        (Some(1), &"RESOURCE_EXHAUSTED".into())
    );
    let text = server.run(&["get", "petrel"]);
    assert!(stderr(&text).contains("'petrel' is not a word"), "{text:?}");
    let many = server.run(&["scan", "--after", "0", "--sum", "--limit", "5000"]);
    assert!(stderr(&many).contains("at most 4096 keys"), "{many:?}");
    for arguments in [&["scan", "--from", "1", "--after", "2"][..], &["scan", "--sum"]] {
        assert_eq!(server.run(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let taken = petrel(&["index", "serve", "--listen", &server.address]);
    assert_eq!(taken.status.code(), Some(1));
    let open = petrel(&["index", "serve", "--listen", "0.0.0.0:0"]);
    assert!(stderr(&open).contains("refused to listen"), "{open:?}");
}

#[test]
fn serve__drains_when_it_is_asked_to_end() {
    let server = start(&[]);
    assert_eq!(server.run(&["put", "1", "1"]).status.code(), Some(0));
    let (code, last) = server.terminate();
    assert_eq!(
        (code, &last["event"], &last["sessions_cut"]),
        (Some(0), &"stopped".into(), &json!(0))
    );
    assert_eq!(last["counters"]["requests_put_word"], 1);
    assert_eq!(last["endpoints"].as_array().unwrap().len(), 1);
}
