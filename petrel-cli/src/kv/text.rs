//! The text form of keys and values.

use petrel::Status;
use petrel_command::failure::Failure;
use petrel_command::text::{from_hex, to_hex};

use crate::cli::FormatArgs;

impl FormatArgs {
    /// Parses the bytes that an argument stands for.
    pub(super) fn bytes(self, text: &str) -> Result<Vec<u8>, Failure> {
        if !self.hex {
            return Ok(text.as_bytes().to_vec());
        }
        from_hex(text).ok_or_else(|| {
            let text =
                format!("'{text}' is not written in pairs of hexadecimal digits, as in 00ff");
            Failure::new(Status::InvalidArgument, text)
        })
    }

    /// Formats bytes for a JSON object: as text, or as digits with `--hex` or if they are not UTF-8.
    pub(super) fn field(self, bytes: &[u8]) -> Field {
        match str::from_utf8(bytes) {
            _ if self.hex => Field { text: Some(to_hex(bytes)), hex: None },
            Ok(text) => Field { text: Some(text.to_owned()), hex: None },
            Err(_) => Field { text: None, hex: Some(to_hex(bytes)) },
        }
    }

    /// Formats bytes in a line for human readers.
    pub(super) fn line(self, bytes: &[u8]) -> String {
        match str::from_utf8(bytes) {
            _ if self.hex => to_hex(bytes),
            Ok(text) if !text.contains(char::is_control) && !text.contains('\\') => text.to_owned(),
            _ => bytes.escape_ascii().to_string(),
        }
    }
}

/// Bytes as text if they are UTF-8, else as digits.
pub(super) struct Field {
    pub(super) text: Option<String>,
    pub(super) hex: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: FormatArgs = FormatArgs { hex: false };
    const HEX: FormatArgs = FormatArgs { hex: true };

    #[test]
    fn bytes__as_text_or_as_digits() {
        assert_eq!(TEXT.bytes("00ff").unwrap(), b"00ff");
        assert_eq!(HEX.bytes("00fF").unwrap(), [0, 255]);
        assert!(HEX.bytes("").unwrap().is_empty());
        for wrong in ["0", "0g", "é0"] {
            assert!(HEX.bytes(wrong).unwrap_err().to_string().contains("hexadecimal"), "{wrong}");
        }
    }

    #[test]
    fn line__is_one_line_whatever_the_bytes() {
        assert_eq!(TEXT.line("grün".as_bytes()), "grün");
        assert_eq!(TEXT.line(b"a\tb\n\\\xff"), r"a\tb\n\\\xff");
        assert_eq!(HEX.line(b"a\n"), "610a");
    }

    #[test]
    fn field__is_text_where_it_can_be() {
        assert_eq!(TEXT.field(b"a").text.as_deref(), Some("a"));
        assert_eq!(TEXT.field(b"\xff").hex.as_deref(), Some("ff"));
        assert_eq!(HEX.field(b"a").text.as_deref(), Some("61"));
    }
}
