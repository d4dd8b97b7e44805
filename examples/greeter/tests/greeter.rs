//! The service of the definition, called.

#![allow(non_snake_case, reason = "tests are named function__condition")]

use petrel::{Server, Status};
use petrel_greeter::Polite;
use petrel_greeter::greeter::{GreeterClient, GreeterServer, HelloRequest, Language};

#[test]
fn hello__in_both_languages_and_without_a_name() {
    let server = Server::in_process();
    let server = server.serve(|_| (), |endpoint| endpoint.serve(GreeterServer::new(Polite)));
    let server = server.start().unwrap();
    let client = GreeterClient::new(server.client().unwrap());
    let request = |language: Language, name: &str| HelloRequest {
        name: name.to_owned(),
        language: language.into(),
    };
    let hello = |request: HelloRequest| client.hello(request).wait();
    assert_eq!(hello(request(Language::English, "petrel")).unwrap().message, "Hello, petrel!");
    assert_eq!(hello(request(Language::German, "Welt")).unwrap().message, "Guten Tag, Welt!");
    // A language of a later version has the default.
    let later = HelloRequest { name: "petrel".to_owned(), language: 7 };
    assert_eq!(hello(later).unwrap().message, "Hello, petrel!");
    let error = hello(request(Language::English, "")).unwrap_err();
    assert_eq!((error.status, &*error.message), (Status::InvalidArgument, "name: nobody to greet"));
    assert!(!GreeterClient::table().descriptors.is_empty());
}
