//! A server's answer with the tables of its typed services.

use petrel::service::{ServedService, parse};

/// Parses any bytes. Tables that are read survive being written, and have no number twice.
pub fn check(data: &[u8]) {
    let Some(services) = parse(data) else { return };
    let again = written(&services);
    assert!(again.len() <= data.len(), "records of unknown kinds are left out");
    assert_eq!(parse(&again).as_ref(), Some(&services));
    let mut numbers = [false; 65_536];
    let methods = services.iter().flat_map(|service| &service.methods);
    for number in methods.flat_map(|method| [Some(method.number), method.envelope]).flatten() {
        let number = usize::from(number);
        assert!(!numbers[number] && number != 65_535, "method {number}");
        numbers[number] = true;
    }
}

/// Writes tables as the specification says (section 8.9).
fn written(services: &[ServedService]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut record = |kind: u8, parts: &[&[u8]]| {
        let value = parts.concat();
        out.push(kind);
        out.extend((value.len() as u16).to_le_bytes());
        out.extend(value);
    };
    for service in services {
        let (name, version) = (service.name.as_bytes(), service.version.as_bytes());
        record(1, &[&[name.len() as u8], name, version]);
        for method in &service.methods {
            let (codec, name) = (method.codec.as_bytes(), method.name.as_bytes());
            let (number, schema) = (method.number.to_le_bytes(), method.schema.to_le_bytes());
            let (sends, answers) = method.streams;
            let flags =
                [u8::from(method.is_idempotent) | u8::from(sends) << 1 | u8::from(answers) << 2];
            record(2, &[&number, &flags, &schema, &[codec.len() as u8], codec, name]);
            if let Some(envelope) = method.envelope {
                record(3, &[&envelope.to_le_bytes()]);
            }
        }
    }
    out
}
