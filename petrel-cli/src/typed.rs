//! Typed services of a server: `petrel list`, and the methods that `petrel call` names.

use std::time::Duration;

use petrel::Status;
use petrel::endpoint::HEALTH_METHOD;
use petrel::service::{ServedMethod, ServedService, TABLES, parse};
use petrel_command::Outcome;
use petrel_command::client::Client;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_command::text::clean;
use serde::Serialize;

use crate::call::client_config;
use crate::cli::ListArgs;

/// The name of the codec of protobuf.
const PROST: &str = "prost";

#[derive(Serialize)]
struct Listed<'a> {
    service: &'a str,
    version: &'a str,
    method: &'a str,
    number: u16,
    /// The number of calls with metadata.
    envelope: Option<u16>,
    codec: &'a str,
    schema: String,
    is_idempotent: bool,
    client_streams: bool,
    server_streams: bool,
}

/// Prints the methods of a server's typed services.
pub(crate) fn list(args: &ListArgs, output: Output) -> Result<Outcome, Failure> {
    let mut client = Client::connect(&args.server.address, &client_config(&args.server))?;
    let services = tables(&mut client, args.server.timeout)?;
    for service in &services {
        output.line(format_args!("{} {}", clean(&service.name), clean(&service.version)))?;
        for method in &service.methods {
            let ServedMethod {
                name, number, envelope, codec, schema, is_idempotent, streams, ..
            } = method;
            let &(client_streams, server_streams) = streams;
            let (number, envelope) = (*number, *envelope);
            let (is_idempotent, schema) = (*is_idempotent, format!("{schema:016x}"));
            let idempotent = if is_idempotent { ", idempotent" } else { "" };
            let (name_text, codec_text) = (clean(name), clean(codec));
            let streams = match streams {
                (false, false) => "",
                (true, false) => ", the client streams",
                (false, true) => ", the server streams",
                (true, true) => ", both sides stream",
            };
            output
                .line(format_args!("  {name_text}  {number}, {codec_text}{idempotent}{streams}"))?;
            let (service, version) = (&*service.name, &*service.version);
            let listed = Listed {
                service,
                version,
                method: name,
                number,
                envelope,
                codec,
                schema,
                is_idempotent,
                client_streams,
                server_streams,
            };
            output.record(&listed)?;
        }
    }
    if services.is_empty() {
        output.line("the server has no typed services")?;
    }
    Ok(Outcome::Success)
}

/// Asks a server for its tables.
fn tables(client: &mut Client, timeout: Duration) -> Result<Vec<ServedService>, Failure> {
    let answer = ask(client, TABLES, timeout)?;
    parse(&answer).ok_or_else(|| Failure::because("the server's tables of methods are malformed"))
}

fn ask(client: &mut Client, what: [u8; 1], timeout: Duration) -> Result<Vec<u8>, Failure> {
    let session = client.sessions[0];
    let answer = client.endpoint.call(session, HEALTH_METHOD, what).timeout(timeout).wait();
    match answer {
        Ok(answer) => Ok(answer.to_vec()),
        Err(error) if error.status == Status::InvalidArgument => {
            Err(Failure::because("the server is of a version that does not name its methods"))
        }
        Err(error) => Err(error.into()),
    }
}

/// A method found by its name.
pub(crate) struct Named {
    pub(crate) number: u16,
    /// The number of calls with metadata, at a server that takes any.
    pub(crate) envelope: Option<u16>,
    /// Whether the client sends a stream, and whether the server does.
    pub(crate) streams: (bool, bool),
    messages: Option<json::Messages>,
}

impl Named {
    /// Finds a method at a server, such as `greeter.Greeter/Hello`.
    pub(crate) fn find(
        client: &mut Client,
        name: &str,
        timeout: Duration,
    ) -> Result<Self, Failure> {
        let services = tables(client, timeout)?;
        let full = |service: &ServedService, method: &ServedMethod| {
            format!("{}/{}", service.name, method.name)
        };
        let mut methods = services
            .iter()
            .flat_map(|service| service.methods.iter().map(move |method| (service, method)));
        let found = methods.clone().find(|(service, method)| full(service, method) == name);
        let Some((service, method)) = found else {
            let names: Vec<_> = methods.by_ref().map(|(of, method)| full(of, method)).collect();
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let text = format!("the server has no method {name}, but {names}");
            return Err(Failure::new(Status::Unimplemented, text));
        };
        let messages = match method.codec == PROST {
            true => Some(json::Messages::read(
                &ask(client, petrel::service::DESCRIPTORS, timeout)?,
                &service.name,
                &method.name,
            )?),
            false => None,
        };
        let &ServedMethod { number, envelope, streams, .. } = method;
        Ok(Self { number, envelope, streams, messages })
    }

    /// Returns true if messages are written as JSON.
    pub(crate) fn has_json(&self) -> bool {
        self.messages.is_some()
    }

    /// Returns the request's bytes: the data itself, unless messages are written as JSON.
    pub(crate) fn request(&self, data: Vec<u8>) -> Result<Vec<u8>, Failure> {
        match &self.messages {
            Some(messages) => messages.request(&data),
            None => Ok(data),
        }
    }

    /// Returns the reply as it is printed.
    pub(crate) fn reply(&self, reply: &[u8]) -> Result<Vec<u8>, Failure> {
        match &self.messages {
            Some(messages) => messages.reply(reply),
            None => Ok(reply.to_vec()),
        }
    }
}

/// Messages of protobuf as JSON.
#[cfg(feature = "full")]
mod json {
    use std::collections::HashSet;
    use std::fmt::Display;

    use petrel_command::failure::Failure;
    use prost_reflect::prost::Message;
    use prost_reflect::prost_types::FileDescriptorSet;
    use prost_reflect::{DescriptorPool, DynamicMessage, MethodDescriptor};

    pub(super) struct Messages(MethodDescriptor);

    impl Messages {
        /// Returns the messages of a method, by the server's descriptors.
        pub(super) fn read(
            descriptors: &[u8],
            service: &str,
            method: &str,
        ) -> Result<Self, Failure> {
            let wrong =
                |why: &dyn Display| Failure::because(format!("the server's descriptors: {why}"));
            let mut set = FileDescriptorSet::decode(descriptors).map_err(|error| wrong(&error))?;
            // Services may share files, such as those of common types.
            let mut names = HashSet::new();
            set.file.retain(|file| names.insert(file.name().to_owned()));
            let pool =
                DescriptorPool::from_file_descriptor_set(set).map_err(|error| wrong(&error))?;
            let service = pool.get_service_by_name(service);
            let found = service.and_then(|of| of.methods().find(|one| one.name() == method));
            found.map(Self).ok_or_else(|| {
                let text = "the server has no descriptors of the method's messages: call it by number, with bytes";
                Failure::because(text)
            })
        }

        pub(super) fn request(&self, data: &[u8]) -> Result<Vec<u8>, Failure> {
            let data: &[u8] = if data.is_empty() { b"{}" } else { data };
            let reader = &mut serde_json::Deserializer::from_slice(data);
            let message = DynamicMessage::deserialize(self.0.input(), &mut *reader);
            let wrong = |error| {
                Failure::because(format!("--data is no {}: {error}", self.0.input().full_name()))
            };
            let message = message.map_err(wrong)?;
            reader.end().map_err(wrong)?;
            Ok(message.encode_to_vec())
        }

        pub(super) fn reply(&self, reply: &[u8]) -> Result<Vec<u8>, Failure> {
            let message = DynamicMessage::decode(self.0.output(), reply);
            let message =
                message.map_err(|error| Failure::because(format!("the reply: {error}")))?;
            serde_json::to_vec(&message).map_err(|error| Failure::because(error.to_string()))
        }
    }
}

#[cfg(not(feature = "full"))]
mod json {
    use petrel_command::failure::Failure;

    pub(super) enum Messages {}

    impl Messages {
        pub(super) fn read(_: &[u8], _: &str, _: &str) -> Result<Self, Failure> {
            Err(Failure::because(
                "this build cannot read JSON: call the method by number, with bytes",
            ))
        }

        pub(super) fn request(&self, _: &[u8]) -> Result<Vec<u8>, Failure> {
            match *self {}
        }

        pub(super) fn reply(&self, _: &[u8]) -> Result<Vec<u8>, Failure> {
            match *self {}
        }
    }
}
