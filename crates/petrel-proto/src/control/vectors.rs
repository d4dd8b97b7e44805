//! The test vectors of `docs/wire-vectors.md`, §11.

use super::*;

const PAGE: &str = include_str!("../../../../docs/wire-vectors.md");

/// A ```` ```control-vector ```` block of the specification.
#[derive(Debug)]
struct Vector {
    name: &'static str,
    hex: String,
    words: &'static str,
}

fn vectors() -> Vec<Vector> {
    let blocks = PAGE.split("```control-vector\n").skip(1);
    blocks.map(|block| parse(block.split("```").next().unwrap())).collect()
}

fn parse(block: &'static str) -> Vector {
    let field = |name: &str| {
        let start = block.find(name).unwrap_or_else(|| panic!("no {name} in {block}"));
        block[start + name.len()..].trim_start()
    };
    let line = |name| field(name).lines().next().unwrap().trim();
    let hex = field("hex:").split("message:").next().unwrap();
    Vector { name: line("name:"), hex: hex.split_whitespace().collect(), words: line("message:") }
}

fn bytes(hex: &str) -> Vec<u8> {
    assert!(hex.len().is_multiple_of(2), "odd number of digits: {hex}");
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn offer_words(offer: &Offer) -> String {
    match offer {
        Offer::Udp { port, max_frame } => format!("offer=udp:{port}:{max_frame}"),
        Offer::Shm { max_frame } => format!("offer=shm:{max_frame}"),
        Offer::Stream { max_frame } => format!("offer=stream:{max_frame}"),
        Offer::Verbs { at: CardAddress { gid, lid, pair, key }, max_frame } => {
            format!("offer=verbs:{}:{lid}:{pair}:{key:#x}:{max_frame}", to_hex(gid))
        }
        Offer::Other(other) => format!("offer=other:{other:?}"),
    }
}

/// Returns the words of the records that a link need not have.
fn extra_words(ecn: bool, features: &LinkFeatures) -> String {
    let ports: Vec<String> = features.paths.as_slice().iter().map(u16::to_string).collect();
    let paths =
        if ports.is_empty() { String::new() } else { format!(" paths={}", ports.join(",")) };
    let flag = |is_there, word: &'static str| if is_there { word } else { "" };
    let key_path = features.key_path.map_or(String::new(), |path| format!(" key_path={path}"));
    let (order, probe) = (flag(features.order, " order"), flag(features.probe, " probe"));
    [flag(ecn, " ecn"), &paths, order, probe, &key_path, flag(features.reverse, " reverse")]
        .concat()
}

/// Returns a message in the notation of the specification.
fn words(message: &Message) -> String {
    let name = message.kind().name();
    match message {
        Message::Hello(hello) => {
            let VersionRange { min, max } = hello.versions;
            let mut words = format!(
                "{name} version_min={min} version_max={max} incarnation={:#x} heartbeat={} agent={:?}",
                hello.incarnation, hello.heartbeat_ms, hello.agent
            );
            let identity = hello.host_identity.map(|identity| to_hex(&identity));
            words.extend(identity.map(|hex| format!(" host_identity={hex}")));
            let rendezvous = hello.rendezvous.as_ref().map(|name| to_hex(name));
            words.extend(rendezvous.map(|hex| format!(" rendezvous={hex}")));
            words
        }
        Message::LinkOpen(LinkOpen { link, from_endpoint, to_endpoint, offers, ecn, features }) => {
            let offers: Vec<String> = offers.iter().map(offer_words).collect();
            let ends = format!("from_endpoint={from_endpoint} to_endpoint={to_endpoint}");
            format!("{name} link={link} {ends} {}{}", offers.join(" "), extra_words(*ecn, features))
        }
        Message::LinkAccept(LinkAccept { link, offer, ticket: None, ecn, features, data_ip }) => {
            let data_ip = data_ip.map_or(String::new(), |ip| format!(" data_ip={ip}"));
            let extras = extra_words(*ecn, features);
            format!("{name} link={link} {}{extras}{data_ip}", offer_words(offer))
        }
        Message::SessionOpen(open) => format!(
            "{name} link={} request={} session={} token={:#x} first_request={} slots={} \
             credits={} max_message={} packet_bytes={}",
            open.link,
            open.request,
            open.session,
            open.token,
            open.first_request,
            open.slots,
            open.credits,
            open.max_message,
            open.packet_bytes
        ),
        Message::SessionAccept(accept) => format!(
            "{name} link={} request={} session={} token={:#x} slots={} credits={} \
             max_message={} packet_bytes={}",
            accept.link,
            accept.request,
            accept.session,
            accept.token,
            accept.slots,
            accept.credits,
            accept.max_message,
            accept.packet_bytes
        ),
        Message::SessionDrain(drain) => format!(
            "{name} link={} session={} token={:#x} text={:?}",
            drain.link, drain.session, drain.token, drain.text
        ),
        Message::Ping(Ping { nonce }) => format!("{name} nonce={nonce:#x}"),
        Message::Goodbye(Goodbye { status, text }) => {
            format!("{name} status={status} text={text:?}")
        }
        Message::GroupJoin(join) => format!(
            "{name} link={} request={} session={} token={:#x} group={} key={:#x} address={} \
             packet_bytes={}",
            join.link,
            join.request,
            join.session,
            join.token,
            join.group,
            join.key,
            join.address,
            join.packet_bytes
        ),
        Message::GroupAccept(GroupAccept { link, request }) => {
            format!("{name} link={link} request={request}")
        }
        Message::GroupLeave(GroupLeave { link, group }) => {
            format!("{name} link={link} group={group}")
        }
        Message::StreamOpen(open) => format!("{name} ticket={}", to_hex(&open.ticket)),
        Message::StreamAccept(accept) => format!("{name} link={}", accept.link),
        other => panic!("the page has no words for {other:?}"),
    }
}

fn error_words(error: DecodeError) -> String {
    match error {
        DecodeError::RecordLength { kind, tag } => {
            format!("error: {} record {tag} of the wrong length", kind.name())
        }
        DecodeError::OutOfRange(OutOfRange { kind, field }) => {
            format!("error: {} {field} out of range", kind.name())
        }
        DecodeError::RecordUnknown { kind, tag } => {
            format!("error: {} unknown record {tag:#x} that must be known", kind.name())
        }
        other => panic!("the page has no words for {other:?}"),
    }
}

/// Returns a decoder in the state in which the message is expected.
fn decoder_before(message: &[u8]) -> Decoder {
    let mut decoder = Decoder::new();
    assert_eq!(decoder.decode(&mut &PREFACE[..]), Ok(None));
    let is_hello = message[4..6] == Kind::Hello.code().to_le_bytes();
    if !is_hello {
        let hello = vectors().into_iter().find(|vector| vector.name == "hello").unwrap();
        assert!(decoder.decode(&mut &bytes(&hello.hex)[..]).unwrap().is_some());
    }
    decoder
}

#[test]
fn decode__matches_every_vector() {
    let vectors = vectors();
    assert!(vectors.len() >= 8, "{}", vectors.len());
    for Vector { name, hex, words: expected } in vectors {
        let message = bytes(&hex);
        let mut rest = &message[..];
        let decoded = decoder_before(&message).decode(&mut rest);
        let decoded = decoded.map(|message| words(&message.unwrap()));
        assert_eq!(decoded.unwrap_or_else(error_words), expected, "{name}");
        assert!(rest.is_empty(), "{name}");
    }
}

#[test]
fn encode__matches_every_valid_vector() {
    let valid = vectors().into_iter().filter(|vector| !vector.words.starts_with("error"));
    for Vector { name, hex, .. } in valid {
        let message = bytes(&hex);
        let decoded = decoder_before(&message).decode(&mut &message[..]).unwrap().unwrap();
        let mut encoded = Vec::new();
        decoded.encode(&mut encoded).unwrap();
        assert_eq!(to_hex(&encoded), hex, "{name}");
    }
}
