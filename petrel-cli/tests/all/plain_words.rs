//! The text that users read: foreign escape sequences removed, names of the command's flags, reasons,
//! and limits that can be tested.

use std::cell::RefCell;
use std::sync::mpsc;

use crate::common::{Server, command, finish, petrel, record, stderr};
use petrel::Nexus;
use petrel::endpoint::EndpointConfig;

#[test]
fn call__writes_out_the_escapes_in_a_servers_text() {
    let server = Server::on_free_port();
    let data = "\u{5}\u{1b}[31mred\u{7}";
    let output = petrel(&["call", &server.address, "--method", "fail", "--data", data]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("\\u{1b}[31mred\\u{7}"), "{text}");
    assert!(!text.contains(['\u{1b}', '\u{7}']), "{text:?}");
}

/// The server of a call that takes too long learns of the client's cancellation.
#[test]
fn call__that_takes_too_long_sends_its_cancel() {
    for transport in ["udp", "shm"] {
        let nexus = Nexus::builder().listen("127.0.0.1:0".parse().unwrap()).start().unwrap();
        let address = nexus.local_addr().unwrap().to_string();
        let (sender, cancel_counts) = mpsc::channel();
        let (stop_sender, stopped) = mpsc::channel();
        let server = std::thread::spawn(move || {
            let mut endpoint = nexus.endpoint(EndpointConfig::default()).unwrap();
            let kept = RefCell::new(Vec::new());
            endpoint.on(9, move |_, cx, request| {
                let (responder, handled) = request.defer(cx);
                kept.borrow_mut().push(responder);
                handled
            });
            let stop = endpoint.stop_handle();
            stop_sender.send(stop.clone()).unwrap();
            endpoint.run(&stop);
            sender.send(endpoint.stats().protocol.cancels_received).unwrap();
        });
        let stop = stopped.recv().unwrap();
        // The end of the link may overtake the last frame. On a busy host the time may be over before the call is sent.
        let calls = (0..10).map(|_| {
            let how = ["--method", "9", "--timeout", "100ms", "--transport", transport];
            let output = petrel(&[&["call", &address][..], &how].concat());
            assert_eq!(output.status.code(), Some(1));
            stderr(&output).to_owned()
        });
        let texts: Vec<_> = calls.collect();
        assert!(texts.iter().any(|text| text.contains("no reply within 100ms")), "{texts:?}");
        stop.stop();
        let cancels = cancel_counts.recv().unwrap();
        server.join().unwrap();
        assert!(cancels > 0, "{transport}");
    }
}

#[test]
fn serve__at_a_public_address_names_the_flag() {
    for service in [&["serve"][..], &["index", "serve"]] {
        let output = petrel(&[service, &["--listen", "0.0.0.0:0"]].concat());
        assert_eq!(output.status.code(), Some(1));
        let text = stderr(&output);
        assert!(text.contains("--insecure") && !text.contains("insecure()"), "{text}");
    }
}

#[test]
fn serve__takes_a_name_to_listen_at() {
    let server = Server::start(&["--listen", "localhost:0"]);
    assert_eq!(petrel(&["ping", &server.address]).status.code(), Some(0));
}

#[test]
fn ping__of_messages_beyond_the_default_limit() {
    let server = Server::start(&["--listen", "127.0.0.1:0", "--message-max", "40MiB"]);
    let large = ["--size", "40MiB", "--count", "1", "--timeout", "60s", "--json"];
    let output = petrel(&[&["ping", &server.address][..], &large].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(record(&output)["mismatched"], 0);
    let output = petrel(&["ping", &server.address, "--size", "2GiB"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(stderr(&output).contains("at most 1GiB"), "{}", stderr(&output));
}

#[test]
fn log__reports_the_reason_on_standard_error_and_nothing_without_it() {
    let server = Server::start(&["--listen", "127.0.0.1:0", "--transport", "udp"]);
    let output = petrel(&["ping", &server.address, "--log", "info", "--json"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(stderr(&output).contains("shm_not_used"), "{}", stderr(&output));
    assert_eq!(record(&output)["transport"], "udp");
    let mut by_environment = command(&["ping", &server.address]);
    let output = finish(by_environment.env("PETREL_LOG", "debug").spawn().unwrap());
    assert!(stderr(&output).contains("session_opened"), "{}", stderr(&output));
    let output = petrel(&["ping", &server.address]);
    assert_eq!(stderr(&output), "");
}
