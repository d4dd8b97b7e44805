//! The canonical gRPC status codes (`docs/wire-protocol.md` §3.3).

use core::fmt;

macro_rules! statuses {
    ($($(#[$doc:meta])* $variant:ident = $code:literal, $name:literal;)*) => {
        /// A canonical gRPC status code: same numbers, names and meanings.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Status { $($(#[$doc])* $variant = $code,)* }

        impl Status {
            /// All codes, in order.
            pub const ALL: [Status; 17] = [$(Status::$variant,)*];

            /// The name as gRPC writes it, for example `UNAVAILABLE`.
            pub const fn name(self) -> &'static str {
                match self { $(Status::$variant => $name,)* }
            }
        }
    };
}

statuses! {
    /// Success.
    Ok = 0, "OK";
    /// The caller gave the call up.
    Cancelled = 1, "CANCELLED";
    /// An error without a better code.
    Unknown = 2, "UNKNOWN";
    /// The request makes no sense, whatever the state of the server.
    InvalidArgument = 3, "INVALID_ARGUMENT";
    /// The time was up before the answer came.
    DeadlineExceeded = 4, "DEADLINE_EXCEEDED";
    /// What was asked for does not exist.
    NotFound = 5, "NOT_FOUND";
    /// What was to be made exists.
    AlreadyExists = 6, "ALREADY_EXISTS";
    /// The caller may not.
    PermissionDenied = 7, "PERMISSION_DENIED";
    /// A limit was reached: memory, message size, sessions.
    ResourceExhausted = 8, "RESOURCE_EXHAUSTED";
    /// The system is not in the state that the call needs.
    FailedPrecondition = 9, "FAILED_PRECONDITION";
    /// Given up because of a conflict; may succeed when tried again from the start.
    Aborted = 10, "ABORTED";
    /// Beyond the valid range.
    OutOfRange = 11, "OUT_OF_RANGE";
    /// The method has no handler.
    Unimplemented = 12, "UNIMPLEMENTED";
    /// Something that must hold did not.
    Internal = 13, "INTERNAL";
    /// The peer cannot be reached, or not any more.
    Unavailable = 14, "UNAVAILABLE";
    /// Data was lost for good.
    DataLoss = 15, "DATA_LOSS";
    /// The caller did not prove who it is.
    Unauthenticated = 16, "UNAUTHENTICATED";
}

impl Status {
    /// The code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Reads a code; what is not in the list is [`Status::Unknown`].
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
