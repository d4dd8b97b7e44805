//! Foreign text on a terminal.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Returns the text with its control characters escaped, as `\u{1b}`, so a terminal does not interpret
/// the characters. Line breaks and tabs stay.
pub fn clean(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().fold(String::with_capacity(text.len() + 8), |mut clean, character| {
        match is_obeyed(character) {
            // Writing to a string cannot fail.
            true => _ = write!(clean, "{}", character.escape_unicode()),
            false => clean.push(character),
        }
        clean
    }))
}

/// As `clean`, for bytes that may not be UTF-8.
pub fn clean_bytes(bytes: &[u8]) -> Cow<'_, [u8]> {
    match String::from_utf8_lossy(bytes) {
        Cow::Borrowed(text) => match clean(text) {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        },
        Cow::Owned(text) => Cow::Owned(clean(&text).into_owned().into_bytes()),
    }
}

/// Returns true for control characters, including the range C1, and for marks that change the direction
/// of the following text.
fn is_obeyed(character: char) -> bool {
    match character {
        '\n' | '\t' => false,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        _ => character.is_control(),
    }
}

/// Returns two hexadecimal digits for each byte.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads pairs of hexadecimal digits; `None` for another text.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.chars().map(|digit| digit.to_digit(16)).collect::<Option<Vec<u32>>>()?;
    let (pairs, []) = digits.as_chunks::<2>() else { return None };
    Some(pairs.iter().map(|[high, low]| (high << 4 | low) as u8).collect())
}

/// Returns the command line of this process for a shell, to repeat the run.
pub fn again() -> String {
    command_line(std::env::args().skip(1))
}

fn command_line(arguments: impl Iterator<Item = String>) -> String {
    let is_plain = |it: char| it.is_alphanumeric() || "-_=+,.:/@%".contains(it);
    arguments.fold("petrel".to_owned(), |line, argument| {
        match !argument.is_empty() && argument.chars().all(is_plain) {
            true => line + " " + &argument,
            false => line + " '" + &argument.replace('\'', r"'\''") + "'",
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line__can_be_given_to_a_shell() {
        let line = ["bench", "kv", "--data", "a b", "", "it's"].map(str::to_owned);
        assert_eq!(command_line(line.into_iter()), r"petrel bench kv --data 'a b' '' 'it'\''s'");
    }

    #[test]
    fn clean__writes_out_what_a_terminal_obeys() {
        for (text, cleaned) in [
            ("plain\ttext, größer\n", "plain\ttext, größer\n"),
            ("\u{1b}[31mred\u{7}", "\\u{1b}[31mred\\u{7}"),
            ("\u{9b}2J", "\\u{9b}2J"),
            ("a\rb\u{8}", "a\\u{d}b\\u{8}"),
            ("\u{202e}txt.exe", "\\u{202e}txt.exe"),
        ] {
            assert_eq!(clean(text), cleaned);
            assert_eq!(clean_bytes(text.as_bytes()), cleaned.as_bytes());
        }
    }

    #[test]
    fn clean_bytes__of_what_is_no_text() {
        assert_eq!(clean_bytes(b"a\xff\x1bb"), "a\u{fffd}\\u{1b}b".as_bytes());
    }
}
