//! Details of errors: named values for programs, behind the text for people (`docs/wire-protocol.md` §3.3).

use std::borrow::Cow;
use std::fmt::Write as _;

use petrel_proto::limits::PACKET_BYTES_MIN;

use super::Error;

/// The most bytes of an error's details: the smallest packet has room for them, and for some text.
const DETAILS_BYTES_MAX: usize = 1_024;

/// The most bytes of a detail's name.
const NAME_BYTES_MAX: usize = 255;

/// A detail of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ErrorDetail<'a> {
    /// The name of the value's type, such as `type.googleapis.com/google.rpc.RetryInfo`.
    pub name: &'a str,
    /// The value in the codec of its type.
    pub value: &'a [u8],
}

impl Error {
    /// Returns the same error with a further detail: the name of a type, and a value for programs. The details of an error have 1 024 bytes at
    /// most, with names and three bytes for each. A detail beyond the limit, or with a name that is no text of 1 to 255 bytes without control
    /// characters, is left out, and the error's message says so.
    #[must_use]
    pub fn with_detail_bytes(mut self, name: &str, value: &[u8]) -> Self {
        let bytes = self.0.details.len() + 3 + name.len() + value.len();
        if !is_name(name.as_bytes()) {
            let _ = write!(self.0.message, " (without a detail: {name:?} is no name of a type)");
        } else if bytes > DETAILS_BYTES_MAX {
            let text = format_args!(
                " (without the detail {name}: {bytes} bytes, and at most {DETAILS_BYTES_MAX} are allowed)"
            );
            let _ = write!(self.0.message, "{text}");
        } else {
            let details = &mut self.0.details;
            details.push(name.len() as u8);
            details.extend_from_slice(name.as_bytes());
            details.extend_from_slice(&(value.len() as u16).to_le_bytes());
            details.extend_from_slice(value);
        }
        self
    }

    /// Returns the details, in the order in which the server added them: none if they break the format.
    pub fn details(&self) -> impl Iterator<Item = ErrorDetail<'_>> {
        let mut rest = &self.0.details[..];
        if !is_valid(rest) {
            rest = &[];
        }
        std::iter::from_fn(move || {
            let (detail, after) = split_detail(rest)?;
            rest = after;
            Some(detail)
        })
    }

    /// Returns the body of the error's response: the text, and the details behind a zero byte. With details the text is cut, so that the
    /// smallest packet has room for both.
    pub(crate) fn body(&self) -> Cow<'_, [u8]> {
        let (text, details) = (&self.message, &self.0.details);
        // Details from a peer may be anything, and are not passed on then.
        if details.is_empty() || !is_valid(details) {
            return Cow::Borrowed(text.as_bytes());
        }
        let room = PACKET_BYTES_MIN as usize - 1 - details.len();
        let text = &text[..text.floor_char_boundary(room)];
        let text: Vec<u8> = text.bytes().filter(|byte| *byte != 0).collect();
        Cow::Owned([&text[..], &[0], details].concat())
    }
}

/// Returns true for details that keep the format to their last byte.
fn is_valid(details: &[u8]) -> bool {
    let mut rest = details;
    while let Some((_, after)) = split_detail(rest) {
        rest = after;
    }
    rest.is_empty() && details.len() <= DETAILS_BYTES_MAX
}

fn is_name(name: &[u8]) -> bool {
    let is_text = || str::from_utf8(name).is_ok_and(|text| !text.contains(char::is_control));
    (1..=NAME_BYTES_MAX).contains(&name.len()) && is_text()
}

/// Splits the first detail from others.
fn split_detail(bytes: &[u8]) -> Option<(ErrorDetail<'_>, &[u8])> {
    let (&len, rest) = bytes.split_first()?;
    let (name, rest) = rest.split_at_checked(len.into())?;
    let (len, rest) = rest.split_first_chunk::<2>()?;
    let (value, rest) = rest.split_at_checked(u16::from_le_bytes(*len).into())?;
    let name = str::from_utf8(name).ok().filter(|name| is_name(name.as_bytes()))?;
    Some((ErrorDetail { name, value }, rest))
}

/// Checks any bytes as details, for the fuzz target: details that are read survive being written.
#[doc(hidden)]
pub fn check_details(details: &[u8]) {
    let error = Error::new(petrel_proto::Status::Aborted, "why");
    let mut read = error.clone();
    read.0.details = details.to_vec();
    let again =
        read.details().fold(error, |error, one| error.with_detail_bytes(one.name, one.value));
    assert_eq!(again.message, "why", "a detail that is read can be written");
    let is_whole = is_valid(details);
    assert_eq!(again.0.details, if is_whole { details } else { &[] });
    let body = read.body();
    assert!(body.len() <= PACKET_BYTES_MIN as usize);
    assert_eq!(body.len() > 3, is_whole && !details.is_empty());
}

#[cfg(test)]
mod tests {
    use petrel_proto::Status;

    use super::*;
    use crate::values::method_table::tests::vector_of;

    fn error() -> Error {
        Error::new(Status::Aborted, "late")
    }

    #[test]
    fn body__as_in_the_specification_and_back() {
        let error = error().with_detail_bytes("a.Retry", &[5, 0]).with_detail_bytes("b", b"");
        assert_eq!(*error.body(), vector_of("detail-vector", "a text with two details"));
        let details: Vec<_> = error.details().map(|one| (one.name, one.value)).collect();
        assert_eq!(details, [("a.Retry", &[5, 0][..]), ("b", b"")]);
        assert_eq!(error.to_string(), "ABORTED: late (the server answered)");
    }

    #[test]
    fn with_detail_bytes__says_which_detail_is_too_large() {
        let largest = error().with_detail_bytes("n", &[0; DETAILS_BYTES_MAX - 4]);
        assert_eq!((largest.details().count(), &*largest.message), (1, "late"));
        let more = largest.clone().with_detail_bytes("more", b"");
        let text = "late (without the detail more: 1031 bytes, and at most 1024 are allowed)";
        assert_eq!((more.details().count(), &*more.message), (1, text));
        let long = largest.with_message("ß".repeat(600));
        assert_eq!(long.body().len(), PACKET_BYTES_MIN as usize - 1, "the text is cut at a letter");
        for name in ["", "a\nb", &"x".repeat(256)] {
            let error = error().with_detail_bytes(name, b"");
            assert!(error.details().next().is_none() && error.message.contains("no name"));
        }
    }

    #[test]
    fn details__that_break_the_format_are_none() {
        let whole = error().with_detail_bytes("a.Retry", &[5, 0]).0.details;
        let details = |bytes: &[u8]| {
            check_details(bytes);
            let mut error = error();
            error.0.details = bytes.to_vec();
            (error.details().count(), error.body().len())
        };
        assert_eq!(details(&whole), (1, 5 + whole.len()));
        for len in 1..whole.len() {
            assert_eq!(details(&whole[..len]), (0, 4), "{len} bytes");
        }
        for (at, byte) in [(0, 0), (0, 8), (1, b'\n'), (1, 0xff), (8, 3), (9, 1)] {
            let mut changed = whole.clone();
            changed[at] = byte;
            assert_eq!(details(&changed), (0, 4), "byte {at}");
        }
        assert_eq!(details(&[&whole[..], &[0]].concat()).0, 0);
        assert_eq!(details(&whole.repeat(100)).0, 0, "too many");
    }
}
