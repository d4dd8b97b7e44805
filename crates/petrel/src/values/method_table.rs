//! Tables of methods: names on the control path, numbers on the data path.
//!
//! A typed service has a [`ServiceTable`]. A server answers with the tables of its services, and a client reads the answer
//! once per session (`docs/wire-protocol.md` §8.9). A call has a number alone: the client's number, or the number that the
//! server has given to the same name.

use std::collections::BTreeSet;

use petrel_proto::limits;

/// The request for the tables of methods, to [`HEALTH_METHOD`](crate::endpoint::HEALTH_METHOD).
pub const TABLES: [u8; 1] = [3];

/// The request for the descriptors of messages: those that `.proto` files define.
pub const DESCRIPTORS: [u8; 1] = [4];

/// Numbers of methods without an `id`: a hash of the name chooses, and the next free number is taken instead of a used one. The
/// range bounds the tables of handlers, which have a place for every number up to the largest.
const FIRST: u16 = 4_096;
const COUNT: u16 = 16_384;

/// Bytes of the longest name of a service, method, codec or version.
const TEXT_BYTES_MAX: usize = 255;

/// The most services that a server's answer may have, and the most methods: a client keeps the answers of all its servers.
const SERVICES_MAX: usize = 1_024;
const METHODS_MAX: usize = 4_096;

/// The kinds of records.
const SERVICE: u8 = 1;
const METHOD: u8 = 2;
const ENVELOPE: u8 = 3;

/// The end of a name whose hash chooses the number of a method with an envelope.
const ENVELOPED: &str = "+";

/// The bits of an idempotent method, and of methods whose client and server send streams.
const IDEMPOTENT: u8 = 1;
const CLIENT_STREAMS: u8 = 2;
const SERVER_STREAMS: u8 = 4;

/// A typed service: its names and methods. Made by the attribute [`service`](macro@crate::service).
#[derive(Debug)]
#[non_exhaustive]
pub struct ServiceTable {
    /// The name, with the package if there is one: `greeter.Greeter`.
    pub name: &'static str,
    /// The version, for people: by default that of the crate that defines the service.
    pub version: &'static str,
    /// The methods, in the order of the definition.
    pub methods: &'static [MethodEntry],
    /// The descriptors of the messages, a `FileDescriptorSet` of protobuf. Empty if the service has no `.proto` file.
    pub descriptors: &'static [u8],
}

/// A method of a [`ServiceTable`].
#[derive(Debug)]
#[non_exhaustive]
pub struct MethodEntry {
    /// The name within the service: `Hello`.
    pub name: &'static str,
    /// The number, if the definition sets one.
    pub id: Option<u16>,
    /// Whether a call may run twice.
    pub is_idempotent: bool,
    /// Whether the client sends a stream, and whether the server does.
    pub streams: (bool, bool),
    /// The name of the codec.
    pub codec: &'static str,
    /// Returns the fingerprint of the messages: both ends have the same, or cannot understand each other.
    pub schema: fn() -> u64,
}

/// A service as a server describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServedService {
    /// The name, with the package.
    pub name: String,
    /// The version, for people.
    pub version: String,
    /// The methods.
    pub methods: Vec<ServedMethod>,
}

/// A method of a [`ServedService`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServedMethod {
    /// The name within the service.
    pub name: String,
    /// The number of calls.
    pub number: u16,
    /// The number of calls with metadata, whose bodies have an envelope ([`Metadata::append_to`](crate::service::Metadata::append_to)). `None` at a
    /// server without metadata.
    pub envelope: Option<u16>,
    /// Whether a call may run twice.
    pub is_idempotent: bool,
    /// Whether the client sends a stream, and whether the server does.
    pub streams: (bool, bool),
    /// The name of the codec.
    pub codec: String,
    /// The fingerprint of the messages.
    pub schema: u64,
}

impl ServiceTable {
    #[doc(hidden)]
    pub const fn new(
        (name, version): (&'static str, &'static str),
        methods: &'static [MethodEntry],
        descriptors: &'static [u8],
    ) -> Self {
        Self { name, version, methods, descriptors }
    }

    /// Returns the numbers of the methods: the defined numbers unless taken, and free numbers for all others. As many numbers follow: the
    /// numbers with an envelope.
    ///
    /// # Panics
    /// When no number is free.
    pub(crate) fn numbers(&self, is_taken: impl Fn(u16) -> bool) -> Vec<u16> {
        let defined: Vec<u16> = self.methods.iter().filter_map(|method| method.id).collect();
        let mut numbers = Vec::with_capacity(2 * self.methods.len());
        let plain = self.methods.iter().map(|method| (method, method.id, ""));
        let enveloped = self.methods.iter().map(|method| (method, None, ENVELOPED));
        for (method, id, suffix) in plain.chain(enveloped) {
            let own = id.filter(|id| !is_taken(*id) && !numbers.contains(id));
            let is_free = |number: &u16| {
                !is_taken(*number) && !defined.contains(number) && !numbers.contains(number)
            };
            let hashed = || {
                let begin = hash([self.name, "/", method.name, suffix]) % u64::from(COUNT);
                let places = (0..COUNT).map(|step| FIRST + (begin as u16 + step) % COUNT);
                let mut free = places.filter(is_free);
                free.next().expect("an endpoint has fewer methods than numbers")
            };
            let number = own.unwrap_or_else(hashed);
            numbers.push(number);
        }
        numbers
    }
}

/// Returns the FNV-1a hash of a text in parts.
pub(crate) fn hash<'a>(parts: impl IntoIterator<Item = &'a str>) -> u64 {
    let bytes = parts.into_iter().flat_map(str::bytes);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Adds the records of a service to a server's answer.
///
/// # Panics
/// When a text of the table breaks the format.
fn write(table: &ServiceTable, numbers: &[u16], answer: &mut Vec<u8>) {
    assert!(is_text(table.version.as_bytes()).is_some(), "a version is short: {}", table.version);
    push(answer, SERVICE, &[&text(table.name), table.version.as_bytes()]);
    let (plain, enveloped) = numbers.split_at(table.methods.len());
    for ((method, number), envelope) in table.methods.iter().zip(plain).zip(enveloped) {
        let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let flags = flag(method.is_idempotent, IDEMPOTENT)
            | flag(method.streams.0, CLIENT_STREAMS)
            | flag(method.streams.1, SERVER_STREAMS);
        let parts: [&[u8]; 5] = [
            &number.to_le_bytes(),
            &[flags],
            &(method.schema)().to_le_bytes(),
            &text(method.codec),
            &text(method.name)[1..],
        ];
        push(answer, METHOD, &parts);
        push(answer, ENVELOPE, &[&envelope.to_le_bytes()]);
    }
}

/// The typed services of an endpoint, and the answers to requests for them.
#[derive(Debug, Default)]
pub(crate) struct TypedServices {
    services: Vec<&'static ServiceTable>,
    tables: Vec<u8>,
    descriptors: Vec<u8>,
}

impl TypedServices {
    /// Adds a service. Services of one file have the same descriptors, which the answer has once.
    ///
    /// # Panics
    /// When the endpoint serves the name already, the services exceed the limits of an answer, or a text breaks the format.
    pub(crate) fn add(&mut self, table: &'static ServiceTable, numbers: &[u16]) {
        let is_new = self.services.iter().all(|other| other.name != table.name);
        assert!(is_new, "the endpoint serves {} already", table.name);
        let has_descriptors =
            self.services.iter().any(|other| other.descriptors == table.descriptors);
        if !has_descriptors {
            self.descriptors.extend_from_slice(table.descriptors);
        }
        write(table, numbers, &mut self.tables);
        self.services.push(table);
        let methods: usize = self.services.iter().map(|service| service.methods.len()).sum();
        let fits = self.services.len() <= SERVICES_MAX && methods <= METHODS_MAX;
        assert!(fits, "an endpoint has at most {SERVICES_MAX} services, {METHODS_MAX} methods");
    }

    /// Makes the answer that of a server of a version without envelopes.
    #[cfg(test)]
    pub(crate) fn hide_envelopes(&mut self) {
        let (mut rest, mut tables) = (&self.tables[..], Vec::new());
        while let Some([kind, low, high]) = rest.first_chunk::<3>() {
            let (record, after) = rest.split_at(3 + usize::from(u16::from_le_bytes([*low, *high])));
            if *kind != ENVELOPE {
                tables.extend_from_slice(record);
            }
            rest = after;
        }
        self.tables = tables;
    }

    /// Returns the answer to a request of the endpoint's own method, if the request is for services.
    pub(crate) fn answer(&self, request: &[u8]) -> Option<&[u8]> {
        if request == TABLES {
            Some(&self.tables)
        } else if request == DESCRIPTORS {
            Some(&self.descriptors)
        } else {
            None
        }
    }
}

/// Returns a text behind its length.
fn text(text: &str) -> Vec<u8> {
    let is_valid = !text.is_empty() && is_text(text.as_bytes()).is_some();
    assert!(is_valid, "a name has 1 to 255 bytes, and no control characters: {text:?}");
    [&[text.len() as u8], text.as_bytes()].concat()
}

fn push(answer: &mut Vec<u8>, kind: u8, parts: &[&[u8]]) {
    let value = parts.concat();
    let len = u16::try_from(value.len()).expect("a record has a few short texts");
    answer.push(kind);
    answer.extend_from_slice(&len.to_le_bytes());
    answer.extend_from_slice(&value);
}

/// Parses a server's answer to a request for its tables. `None` if it breaks the format. Records of unknown kinds are skipped.
pub fn parse(mut bytes: &[u8]) -> Option<Vec<ServedService>> {
    let mut services: Vec<ServedService> = Vec::new();
    let mut methods = 0;
    while let Some((head, rest)) = bytes.split_first_chunk::<3>() {
        let [kind, low, high] = *head;
        let (value, rest) = rest.split_at_checked(u16::from_le_bytes([low, high]).into())?;
        bytes = rest;
        match kind {
            SERVICE if services.len() == SERVICES_MAX => return None,
            METHOD if methods == METHODS_MAX => return None,
            SERVICE => {
                let (name, version) = split_text(value)?;
                let (name, version) = (name.to_owned(), is_text(version)?.to_owned());
                services.push(ServedService { name, version, methods: Vec::new() });
            }
            METHOD => {
                services.last_mut()?.methods.push(method(value)?);
                methods += 1;
            }
            ENVELOPE => {
                let number = u16::from_le_bytes(value.try_into().ok()?);
                let method = services.last_mut()?.methods.last_mut()?;
                let is_first = method.envelope.replace(number).is_none();
                (is_first && number != limits::ENDPOINT_METHOD).then_some(())?;
            }
            _ => {}
        }
    }
    let all = || services.iter().flat_map(|service| &service.methods);
    let is_clear =
        are_distinct(all().flat_map(|method| [Some(method.number), method.envelope]).flatten())
            && are_distinct(services.iter().map(|service| &service.name))
            && services
                .iter()
                .all(|one| are_distinct(one.methods.iter().map(|method| &method.name)));
    (bytes.is_empty() && is_clear).then_some(services)
}

fn are_distinct<T: Ord>(mut items: impl Iterator<Item = T>) -> bool {
    let mut seen = BTreeSet::new();
    items.all(|item| seen.insert(item))
}

fn method(value: &[u8]) -> Option<ServedMethod> {
    let (number, value) = value.split_first_chunk::<2>()?;
    let (&flags, value) = value.split_first()?;
    let (schema, value) = value.split_first_chunk::<8>()?;
    let (codec, name) = split_text(value)?;
    let number = u16::from_le_bytes(*number);
    (number != limits::ENDPOINT_METHOD).then_some(ServedMethod {
        name: is_text(name).filter(|name| !name.is_empty())?.to_owned(),
        number,
        envelope: None,
        is_idempotent: flags & IDEMPOTENT != 0,
        streams: (flags & CLIENT_STREAMS != 0, flags & SERVER_STREAMS != 0),
        codec: codec.to_owned(),
        schema: u64::from_le_bytes(*schema),
    })
}

/// Splits a text behind its length from the bytes after it.
fn split_text(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (&len, rest) = bytes.split_first()?;
    let (text, rest) = rest.split_at_checked(len.into())?;
    let text = is_text(text).filter(|text| !text.is_empty())?;
    Some((text, rest))
}

fn is_text(bytes: &[u8]) -> Option<&str> {
    let text = str::from_utf8(bytes).ok()?;
    let is_short = text.len() <= TEXT_BYTES_MAX;
    (is_short && !text.contains(char::is_control)).then_some(text)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../../docs/wire-vectors.md");

    pub(in crate::values) fn entry(
        name: &'static str,
        id: Option<u16>,
        is_idempotent: bool,
    ) -> MethodEntry {
        let streams = (false, false);
        MethodEntry {
            name,
            id,
            is_idempotent,
            streams,
            codec: "text",
            schema: || 0x0102_0304_0506_0708,
        }
    }

    pub(in crate::values) fn table(
        name: &'static str,
        methods: Vec<MethodEntry>,
    ) -> &'static ServiceTable {
        let methods = methods.leak();
        Box::leak(Box::new(ServiceTable { name, version: "2.0", methods, descriptors: &[] }))
    }

    fn named(number: usize) -> String {
        format!("{number:04}")
    }

    pub(in crate::values) fn served(table: &'static ServiceTable) -> Vec<ServedService> {
        let mut bytes = Vec::new();
        write(table, &table.numbers(|_| false), &mut bytes);
        parse(&bytes).expect("what is written can be read")
    }

    fn vector(name: &str) -> Vec<u8> {
        vector_of("table-vector", name)
    }

    /// The bytes of the vector of a kind with this name in `docs/wire-vectors.md`.
    pub(crate) fn vector_of(kind: &str, name: &str) -> Vec<u8> {
        let begin = format!("\n```{kind}\n");
        let mut blocks = PAGE.split(&*begin).skip(1);
        let block = blocks.find_map(|block| {
            let block = block.split("\n```").next().expect("a block");
            let (of, bytes) = block.split_once('\n').unwrap_or((block, ""));
            (of == format!("name: {name}")).then_some(bytes)
        });
        let digits = block.expect("the page has the vector").split_whitespace();
        digits.map(|digits| u8::from_str_radix(digits, 16).expect("two digits")).collect()
    }

    #[test]
    fn write__of_methods_with_streams() {
        for streams in [(false, true), (true, false), (true, true)] {
            let method = MethodEntry { streams, ..entry("M", Some(7), false) };
            assert_eq!(served(table("S", vec![method]))[0].methods[0].streams, streams);
        }
    }

    #[test]
    fn write__as_in_the_specification_and_back() {
        let key = table("Key", vec![entry("Get", Some(7), true), entry("Put", Some(9), false)]);
        let mut bytes = Vec::new();
        write(key, &[7, 9, 4_096, 4_097], &mut bytes);
        assert_eq!(bytes, vector("a service of two methods"));
        let [service] = &parse(&bytes).expect("tables")[..] else { panic!("one service") };
        assert_eq!((&*service.name, &*service.version), ("Key", "2.0"));
        let numbers: Vec<_> =
            service.methods.iter().map(|one| (one.number, one.is_idempotent)).collect();
        assert_eq!(numbers, [(7, true), (9, false)]);
        let envelopes = service.methods.iter().map(|one| one.envelope);
        assert!(envelopes.eq([Some(4_096), Some(4_097)]));
        let earlier = parse(&vector("a service of two methods without envelopes"));
        let [service] = &earlier.expect("tables")[..] else { panic!("one service") };
        assert!(service.methods.iter().all(|one| one.envelope.is_none()));
        assert_eq!(parse(&vector("an endpoint without typed services")), Some(Vec::new()));
        let later = parse(&vector("a record of a later version")).expect("tables");
        assert_eq!((later.len(), &*later[0].version), (1, ""));
    }

    #[test]
    fn parse__refuses_parts_of_records_and_wrong_values() {
        let whole = vector("a service of two methods without envelopes");
        for len in 1..whole.len() {
            let is_some = parse(&whole[..len]).is_some();
            assert_eq!(is_some, len == 10 || len == 32, "{len} bytes");
        }
        let method = &whole[10..32];
        let changed = |at: usize, byte: u8| {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            parse(&bytes)
        };
        assert_eq!(parse(method), None, "a method without a service");
        assert_eq!(parse(&[&whole[..32], method].concat()), None, "a number twice");
        for (at, byte) in [(3, 7), (3, 0), (5, 0xff), (6, b'\n'), (24, 9), (30, 0)] {
            assert_eq!(changed(at, byte), None, "byte {at}");
        }
        assert!(changed(15, 0xff).is_some(), "unknown flags");
        let service = |number| [&[SERVICE, 5, 0, 4][..], named(number).as_bytes()].concat();
        let services = |count: usize| parse(&(0..count).flat_map(service).collect::<Vec<u8>>());
        assert!(services(SERVICES_MAX).is_some() && services(SERVICES_MAX + 1).is_none());
        assert_eq!(parse(&service(1).repeat(2)), None, "a service twice");
        let method = |number: usize| {
            let record = [METHOD, 17, 0, number as u8, (number >> 8) as u8, 0];
            [&record[..], &[0; 8], &[1, b'c'], named(number).as_bytes()].concat()
        };
        let methods = |count: usize| {
            let methods: Vec<u8> = (0..count).flat_map(method).collect();
            parse(&[service(1), methods].concat())
        };
        assert!(methods(METHODS_MAX).is_some() && methods(METHODS_MAX + 1).is_none());
        let mut same = method(2);
        let end = same.len() - 1;
        same[end] = b'1';
        assert_eq!(parse(&[service(1), method(1), same].concat()), None, "a method twice");
        let enveloped = |records: &[&[u8]]| {
            let records = records.concat();
            parse(&[service(1), method(1), method(2), records].concat()).is_some()
        };
        let [first, second] = [[ENVELOPE, 2, 0, 7, 16], [ENVELOPE, 2, 0, 2, 0]];
        assert!(enveloped(&[&first]));
        assert!(!enveloped(&[&first, &[ENVELOPE, 2, 0, 8, 16]]), "two envelopes of a method");
        assert!(!enveloped(&[&second]), "the number of a method");
        assert!(!enveloped(&[&[ENVELOPE, 2, 0, 0xff, 0xff]]), "the endpoint's own number");
        for len in [0, 1, 3] {
            assert!(!enveloped(&[&[ENVELOPE, len, 0], &[7; 3][..len.into()]]), "{len} bytes");
        }
        assert_eq!(parse(&[service(1), first.to_vec()].concat()), None, "no method");
    }

    #[test]
    fn answer__of_services_of_one_file_has_its_descriptors_once() {
        let mut services = TypedServices::default();
        for (name, number) in [("A", 1), ("B", 2)] {
            let methods = vec![entry("M", None, false)].leak();
            let table = ServiceTable { name, version: "", methods, descriptors: b"file" };
            services.add(Box::leak(Box::new(table)), &[number, number + 10]);
        }
        assert_eq!(services.answer(&DESCRIPTORS), Some(&b"file"[..]));
        let tables = parse(services.answer(&TABLES).expect("tables")).expect("two services");
        assert_eq!((tables.len(), services.answer(&[9])), (2, None));
    }

    #[test]
    fn write__refuses_texts_that_no_client_reads() {
        let long = "x".repeat(256).leak();
        for name in ["", "a\nb", long] {
            let table = table("S", vec![entry(name, None, false)]);
            let written = std::panic::catch_unwind(|| write(table, &[1, 2], &mut Vec::new()));
            assert!(written.is_err(), "{name:?}");
        }
    }

    #[test]
    fn numbers__are_the_next_free_ones_by_the_hash_of_the_name() {
        let one = table("One", vec![entry("A", None, false), entry("B", Some(1), false)]);
        let [first, 1, ref enveloped @ ..] = one.numbers(|_| false)[..] else {
            panic!("the defined number")
        };
        let hashed = |name| FIRST + (hash([name]) % u64::from(COUNT)) as u16;
        assert_eq!(enveloped, ["One/A+", "One/B+"].map(hashed));
        assert_eq!(first, FIRST + (hash(["One/A"]) % u64::from(COUNT)) as u16);
        assert_eq!(one.numbers(|number| number == first)[0], first + 1);
        let moved = one.numbers(|number| number == 1)[1];
        assert!((FIRST..FIRST + COUNT).contains(&moved));
        let last = FIRST + COUNT - 1;
        let wrapped = one.numbers(|number| number >= first && number <= last)[0];
        assert_eq!(wrapped, FIRST);
    }
}
