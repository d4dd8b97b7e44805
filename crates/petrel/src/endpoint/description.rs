//! The description of a service: the name, and the serving endpoints of the process.
//!
//! A client asks an endpoint for the description at connect (`docs/wire-protocol.md` §8.9). The answer tells whether the address still
//! belongs to the wanted service, and names the endpoints for the load.

use crate::control::EndpointId;

/// The request for a description, to [`HEALTH_METHOD`](super::HEALTH_METHOD): requests for health have zero or two bytes.
pub(crate) const DESCRIBE: [u8; 1] = [1];

/// Bytes of the longest name of a service.
const NAME_BYTES_MAX: usize = 255;

/// The most endpoints of a service in one process: more than any host has cores.
const ENDPOINTS_MAX: usize = 4096;

/// The kinds of records.
const NAME: u8 = 1;
const ENDPOINTS: u8 = 2;

/// Bytes of a record's kind and length.
const RECORD_HEAD_BYTES: usize = 3;

// A description is as long as a record may be, and no client allocates more than that for one.
const _: () = assert!(2 * ENDPOINTS_MAX <= u16::MAX as usize);
const _: () = assert!(NAME_BYTES_MAX <= u16::MAX as usize);

/// The description of a server for clients at connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceDescription {
    /// The name of the service: up to 255 bytes. A client of another service makes no calls. `None` by default: the service has
    /// no name.
    pub name: Option<String>,
    /// The endpoints of the process with equal handlers, in the order of key ownership. Empty by default: clients call the endpoint of
    /// the connection.
    pub endpoints: Vec<EndpointId>,
}

impl ServiceDescription {
    /// Checks the description; the error is the first violated rule.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        let is_name = |name: &String| {
            (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains(char::is_control)
        };
        if !self.name.as_ref().is_none_or(is_name) {
            Err("the name of a service has 1 to 255 bytes, and no control characters")
        } else if self.endpoints.len() > ENDPOINTS_MAX {
            Err("a service has at most 4096 endpoints")
        } else {
            Ok(())
        }
    }

    /// Returns the answer to a request for the description.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut push = |kind, value: &[u8]| {
            let len = u16::try_from(value.len()).expect("a checked description has short records");
            bytes.push(kind);
            bytes.extend_from_slice(&len.to_le_bytes());
            bytes.extend_from_slice(value);
        };
        if let Some(name) = &self.name {
            push(NAME, name.as_bytes());
        }
        if !self.endpoints.is_empty() {
            let numbers: Vec<u8> =
                self.endpoints.iter().flat_map(|id| id.0.to_le_bytes()).collect();
            push(ENDPOINTS, &numbers);
        }
        bytes
    }

    /// Parses a server's answer. `None` if it breaks the format. Records of unknown kinds are skipped.
    pub(crate) fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let mut description = Self::default();
        while let Some((head, rest)) = bytes.split_first_chunk::<RECORD_HEAD_BYTES>() {
            let [kind, low, high] = *head;
            let (value, rest) = rest.split_at_checked(u16::from_le_bytes([low, high]).into())?;
            bytes = rest;
            match kind {
                NAME => description.name = Some(String::from_utf8(value.to_vec()).ok()?),
                ENDPOINTS => {
                    let (numbers, []) = value.as_chunks::<2>() else { return None };
                    let id = |number: &[u8; 2]| EndpointId(u16::from_le_bytes(*number));
                    description.endpoints = numbers.iter().map(id).collect();
                }
                _ => {}
            }
        }
        (bytes.is_empty() && description.check().is_ok()).then_some(description)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::method_table::tests::vector_of;

    fn described(name: Option<&str>, endpoints: &[u16]) -> ServiceDescription {
        let endpoints = endpoints.iter().copied().map(EndpointId).collect();
        ServiceDescription { name: name.map(str::to_owned), endpoints }
    }

    /// The bytes of the vector with this name in `docs/wire-vectors.md`, §8.9.
    fn vector(name: &str) -> Vec<u8> {
        vector_of("description-vector", name)
    }

    #[test]
    fn to_bytes__as_in_the_specification_and_back() {
        for (name, description) in [
            ("a service of three endpoints", described(Some("kv"), &[0, 1, 258])),
            ("an endpoint alone", described(None, &[])),
        ] {
            assert_eq!(description.to_bytes(), vector(name), "{name}");
            assert_eq!(ServiceDescription::from_bytes(&vector(name)), Some(description), "{name}");
        }
        let later = vector("a record of a later version");
        assert_eq!(ServiceDescription::from_bytes(&later), Some(described(Some("kv"), &[])));
    }

    #[test]
    fn from_bytes__refuses_each_part_of_a_description_and_wrong_values() {
        let whole = described(Some("kv"), &[7]).to_bytes();
        let at_records = [0, RECORD_HEAD_BYTES + 2, whole.len()];
        for len in 0..=whole.len() {
            let is_some = ServiceDescription::from_bytes(&whole[..len]).is_some();
            assert_eq!(is_some, at_records.contains(&len), "{len} bytes");
        }
        let wrong: [&[u8]; 4] =
            [&[NAME, 0, 0], &[NAME, 1, 0, 0xff], &[NAME, 1, 0, b'\n'], &[ENDPOINTS, 1, 0, 5]];
        for bytes in wrong {
            assert_eq!(ServiceDescription::from_bytes(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn check__of_names_and_counts() {
        assert_eq!(
            described(Some(&"n".repeat(NAME_BYTES_MAX)), &[0; ENDPOINTS_MAX]).check(),
            Ok(())
        );
        assert!(described(Some(&"n".repeat(NAME_BYTES_MAX + 1)), &[]).check().is_err());
        assert!(described(Some(""), &[]).check().is_err());
        assert!(described(None, &[0; ENDPOINTS_MAX + 1]).check().is_err());
    }
}
