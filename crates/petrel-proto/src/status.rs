//! The canonical gRPC status codes (`docs/wire-protocol.md` §3.3).

use core::fmt;

macro_rules! statuses {
    ($($(#[$doc:meta])* $variant:ident = $code:literal, $name:literal;)*) => {
        /// A canonical gRPC status code, with gRPC's number, name and meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Status { $($(#[$doc])* $variant = $code,)* }

        impl Status {
            /// All codes, in order.
            pub const ALL: [Status; 17] = [$(Status::$variant,)*];

            /// Returns gRPC's name of the code, for example `UNAVAILABLE`.
            pub const fn name(self) -> &'static str {
                match self { $(Status::$variant => $name,)* }
            }
        }
    };
}

statuses! {
    /// Success.
    Ok = 0, "OK";
    /// The caller cancelled the call.
    Cancelled = 1, "CANCELLED";
    /// An error without a better code.
    Unknown = 2, "UNKNOWN";
    /// The request is not valid in any state of the server.
    InvalidArgument = 3, "INVALID_ARGUMENT";
    /// The deadline passed before the answer arrived.
    DeadlineExceeded = 4, "DEADLINE_EXCEEDED";
    /// The requested entity does not exist.
    NotFound = 5, "NOT_FOUND";
    /// The entity to be created exists.
    AlreadyExists = 6, "ALREADY_EXISTS";
    /// The caller lacks the permission.
    PermissionDenied = 7, "PERMISSION_DENIED";
    /// A limit was reached: memory, message size, sessions.
    ResourceExhausted = 8, "RESOURCE_EXHAUSTED";
    /// The system is not in the state that the call needs.
    FailedPrecondition = 9, "FAILED_PRECONDITION";
    /// Ended because of a conflict; may succeed if the whole operation is tried again.
    Aborted = 10, "ABORTED";
    /// Beyond the valid range.
    OutOfRange = 11, "OUT_OF_RANGE";
    /// The method has no handler.
    Unimplemented = 12, "UNIMPLEMENTED";
    /// An invariant was violated.
    Internal = 13, "INTERNAL";
    /// The peer cannot be reached, or no longer.
    Unavailable = 14, "UNAVAILABLE";
    /// Data was lost for good.
    DataLoss = 15, "DATA_LOSS";
    /// The caller did not authenticate.
    Unauthenticated = 16, "UNAUTHENTICATED";
}

impl Status {
    /// Returns the code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the status of a code; unknown codes become [`Status::Unknown`].
    pub const fn from_code(code: u8) -> Self {
        if (code as usize) < Self::ALL.len() { Self::ALL[code as usize] } else { Status::Unknown }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_their_positions() {
        for (position, status) in Status::ALL.iter().enumerate() {
            assert_eq!(usize::from(status.code()), position);
            assert_eq!(Status::from_code(status.code()), *status);
        }
        assert_eq!(Status::from_code(17), Status::Unknown);
        assert_eq!(Status::from_code(255), Status::Unknown);
    }
}
