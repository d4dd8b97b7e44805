//! Keys and values on the wire. A value consists of a unique tag, and padding determined by the tag.

pub(crate) fn key_of(number: u8) -> [u8; 4] {
    [b'k', b'e', b'y', b'0' + number]
}

pub(crate) fn number_of(key: &[u8]) -> Option<u8> {
    let number = key.strip_prefix(b"key").filter(|rest| rest.len() == 1)?[0];
    number.checked_sub(b'0')
}

/// The value for a tag. The tag's last number is the length of the padding.
pub(crate) fn value_of(tag: &str) -> Vec<u8> {
    let padding = tag.rsplit('.').next().and_then(|digits| digits.parse().ok()).unwrap_or(0);
    let mut value = format!("{tag}|").into_bytes();
    value.resize(value.len() + padding, b'x');
    value
}

/// The tag of a value, if the value is complete.
pub(crate) fn tag_of(value: &[u8]) -> Option<String> {
    let end = value.iter().position(|byte| *byte == b'|')?;
    let tag = std::str::from_utf8(&value[..end]).ok()?;
    (value_of(tag) == value).then(|| tag.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value__round_trips_and_no_other_does() {
        let value = value_of("3.17.5");
        assert_eq!(value, b"3.17.5|xxxxx");
        assert_eq!(tag_of(&value).as_deref(), Some("3.17.5"));
        assert_eq!(tag_of(&value[..value.len() - 1]), None);
        assert_eq!(tag_of(b""), None);
        assert_eq!(number_of(&key_of(4)), Some(4));
        assert_eq!(number_of(b"key"), None);
    }
}
