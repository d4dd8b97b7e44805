//! Health queries of load balancers and operators: whether an endpoint, or a method, can serve.
//!
//! The endpoint answers from its event loop: a health response says more than an open connection, or a running process.
//! The codes are those of `grpc.health.v1`.

use std::collections::HashMap;

use petrel_proto::{Status, limits};

use crate::error::Error;

/// The method of health queries; no handler can be registered for it.
///
/// The request is empty, for the endpoint as a whole, or a method's number as a little-endian `u16`. The response is
/// one byte, a [`Health`]. A request of three bytes or more that begins with [`ECHO_REQUEST`] is answered with its own
/// bytes.
pub const HEALTH_METHOD: u16 = limits::ENDPOINT_METHOD;

/// The first byte of a request to [`HEALTH_METHOD`] that the endpoint answers with the same bytes, of whatever service it
/// is: `petrel ping` measures round trips by it. An endpoint of an older version answers with INVALID_ARGUMENT.
pub const ECHO_REQUEST: u8 = 2;

/// Bytes of the shortest request for an echo: shorter requests ask for health.
const ECHO_BYTES_MIN: usize = 3;

/// Returns true for a request that is answered with its own bytes.
pub(super) fn is_echo(request: &[u8]) -> bool {
    request.len() >= ECHO_BYTES_MIN && request[0] == ECHO_REQUEST
}

/// Whether an endpoint or method can serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Health {
    /// It can serve.
    Serving = 1,
    /// The endpoint or method wants no requests: during a start, a drain, or for lack of a resource.
    NotServing = 2,
    /// There is no such method.
    Unknown = 3,
}

impl Health {
    /// Returns the health with this code on the wire.
    pub fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Health::Serving),
            2 => Some(Health::NotServing),
            3 => Some(Health::Unknown),
            _ => None,
        }
    }

    /// Parses a server's response.
    pub(crate) fn from_answer(answer: &[u8]) -> Result<Self, Error> {
        let code = <[u8; 1]>::try_from(answer).ok();
        code.and_then(|[code]| Self::from_code(code))
            .ok_or_else(|| Error::new(Status::Internal, "the server's answer is no health"))
    }
}

/// The text for a request that asks for none of the answers.
pub(super) const INVALID_HEALTH_REQUEST: &str =
    "a request for health is empty, or the two bytes of a method";

/// The health set by the application.
#[derive(Debug, Default)]
pub(super) struct Healths {
    endpoint: Option<Health>,
    methods: HashMap<u16, Health>,
}

impl Healths {
    /// Sets the health of the whole endpoint.
    pub(super) fn set_endpoint(&mut self, health: Health) {
        self.endpoint = Some(health);
    }

    /// Sets the health of a method.
    pub(super) fn set_method(&mut self, method: u16, health: Health) {
        self.methods.insert(method, health);
    }

    /// Returns the answer to a request; none if the request is invalid.
    pub(super) fn answer(
        &self,
        request: &[u8],
        has_handler: impl Fn(u16) -> bool,
    ) -> Option<Health> {
        let whole = self.endpoint.unwrap_or(Health::Serving);
        match *request {
            [] => Some(whole),
            [low, high] => {
                let method = u16::from_le_bytes([low, high]);
                let of_method = match self.methods.get(&method) {
                    Some(health) => *health,
                    None if has_handler(method) => Health::Serving,
                    None => Health::Unknown,
                };
                let counts = of_method == Health::Serving;
                Some(if counts { whole } else { of_method })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_echo__of_three_bytes_or_more_with_the_first_byte() {
        assert!(is_echo(&[2, 0, 0]) && is_echo(&[2; 100]));
        for other in [&[][..], &[2], &[2, 0], &[1, 0, 0], &[3, 2, 2]] {
            assert!(!is_echo(other), "{other:?}");
        }
    }

    #[test]
    fn answer__of_a_method_is_no_better_than_of_the_endpoint() {
        let mut healths = Healths::default();
        let has_handler = |method| method == 7;
        let ask = |healths: &Healths, request: &[u8]| healths.answer(request, has_handler);
        assert_eq!(ask(&healths, &[]), Some(Health::Serving));
        assert_eq!(ask(&healths, &[7, 0]), Some(Health::Serving));
        assert_eq!(ask(&healths, &[8, 0]), Some(Health::Unknown));
        assert_eq!(ask(&healths, &[7]), None);
        healths.set_method(8, Health::NotServing);
        assert_eq!(ask(&healths, &[8, 0]), Some(Health::NotServing));
        healths.set_endpoint(Health::NotServing);
        assert_eq!(ask(&healths, &[7, 0]), Some(Health::NotServing));
        assert_eq!(ask(&healths, &[]), Some(Health::NotServing));
        for health in [Health::Serving, Health::NotServing, Health::Unknown] {
            assert_eq!(Health::from_code(health as u8), Some(health));
        }
        assert_eq!(Health::from_code(0), None);
    }
}
