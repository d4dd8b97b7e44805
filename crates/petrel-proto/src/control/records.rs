//! The records of a message's body: `u16` tag, `u16` length, value (§8.1).

use super::{DecodeError, Kind, OFFERS_MAX};
use crate::Status;

/// Version 1 uses tags below this.
const TAGS: usize = 16;

/// Receivers must understand tags with this bit.
const CRITICAL: u16 = 1 << 15;

/// The records of one body by tag, borrowed from the body.
pub(super) struct Records<'a> {
    kind: Kind,
    tags: &'static Tags,
    single: [Option<&'a [u8]>; TAGS],
    repeated: [&'a [u8]; OFFERS_MAX],
    repeated_count: usize,
}

/// The tags of a message.
pub(super) struct Tags {
    /// Tags that occur at most once.
    pub(super) single: &'static [u16],
    /// The tag that may repeat, up to [`OFFERS_MAX`] times.
    pub(super) repeated: Option<u16>,
}

impl<'a> Records<'a> {
    /// Splits a body into records, and refuses records that the message cannot have.
    pub(super) fn read(
        kind: Kind,
        tags: &'static Tags,
        mut body: &'a [u8],
    ) -> Result<Self, DecodeError> {
        assert!(
            tags.single.iter().all(|tag| usize::from(*tag) < TAGS),
            "the tags of a message have places in the table"
        );
        let (single, repeated) = ([None; TAGS], [&[][..]; OFFERS_MAX]);
        let mut records = Self { kind, tags, single, repeated, repeated_count: 0 };
        while !body.is_empty() {
            let (tag, value, rest) =
                split_record(body).ok_or(DecodeError::RecordsDoNotFit { kind })?;
            records.put(tag, value)?;
            body = rest;
        }
        Ok(records)
    }

    fn put(&mut self, tag: u16, value: &'a [u8]) -> Result<(), DecodeError> {
        let Self { kind, tags, .. } = *self;
        if tags.repeated == Some(tag) {
            let place = self.repeated.get_mut(self.repeated_count);
            *place.ok_or(DecodeError::RecordRepeated { kind, tag })? = value;
            self.repeated_count += 1;
        } else if tags.single.contains(&tag) {
            if self.single[usize::from(tag)].replace(value).is_some() {
                return Err(DecodeError::RecordRepeated { kind, tag });
            }
        } else if tag & CRITICAL != 0 {
            return Err(DecodeError::RecordUnknown { kind, tag });
        }
        Ok(())
    }

    /// Returns the type of the message.
    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the values of the repeated tag, in order.
    pub(super) fn repeated(&self) -> &[&'a [u8]] {
        assert!(self.tags.repeated.is_some(), "a list is read of a message that has one");
        &self.repeated[..self.repeated_count]
    }

    /// Returns a record of any length, if present.
    pub(super) fn optional(&self, tag: u16) -> Option<&'a [u8]> {
        assert!(self.tags.single.contains(&tag), "a message is read by its own tags");
        self.single[usize::from(tag)]
    }

    /// Returns a required record of any length.
    pub(super) fn bytes(&self, tag: u16) -> Result<&'a [u8], DecodeError> {
        self.optional(tag).ok_or(DecodeError::RecordMissing { kind: self.kind, tag })
    }

    /// Returns a record of exactly `N` bytes, if present.
    pub(super) fn optional_array<const N: usize>(
        &self,
        tag: u16,
    ) -> Result<Option<[u8; N]>, DecodeError> {
        self.optional(tag).map(|value| self.to_array(tag, value)).transpose()
    }

    /// Returns true if an empty record is present.
    pub(super) fn flag(&self, tag: u16) -> Result<bool, DecodeError> {
        self.optional_array::<0>(tag).map(|value| value.is_some())
    }

    fn to_array<const N: usize>(&self, tag: u16, value: &[u8]) -> Result<[u8; N], DecodeError> {
        value.try_into().map_err(|_| DecodeError::RecordLength { kind: self.kind, tag })
    }

    fn array<const N: usize>(&self, tag: u16) -> Result<[u8; N], DecodeError> {
        self.to_array(tag, self.bytes(tag)?)
    }

    pub(super) fn u8(&self, tag: u16) -> Result<u8, DecodeError> {
        self.array::<1>(tag).map(|[byte]| byte)
    }

    pub(super) fn u16(&self, tag: u16) -> Result<u16, DecodeError> {
        self.array(tag).map(u16::from_le_bytes)
    }

    pub(super) fn u32(&self, tag: u16) -> Result<u32, DecodeError> {
        self.array(tag).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&self, tag: u16) -> Result<u64, DecodeError> {
        self.array(tag).map(u64::from_le_bytes)
    }

    pub(super) fn status(&self, tag: u16) -> Result<Status, DecodeError> {
        self.u8(tag).map(Status::from_code)
    }

    pub(super) fn text(&self, tag: u16, bytes_max: usize) -> Result<String, DecodeError> {
        let value = self.bytes(tag)?;
        if value.len() > bytes_max {
            return Err(DecodeError::RecordLength { kind: self.kind, tag });
        }
        let text = core::str::from_utf8(value);
        text.map(str::to_owned).map_err(|_| DecodeError::RecordText { kind: self.kind, tag })
    }
}

/// Returns the first record's tag and value, and the remaining bytes.
fn split_record(body: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let (tag, rest) = body.split_first_chunk()?;
    let (length, rest) = rest.split_first_chunk()?;
    let (value, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    Some((u16::from_le_bytes(*tag), value, rest))
}

/// Appends a record.
///
/// # Panics
/// When the value has more than 65 535 bytes; the callers' limits forbid it.
pub(super) fn write(out: &mut Vec<u8>, tag: u16, value: &[u8]) {
    let length = u16::try_from(value.len()).expect("a record's value fits its length field");
    out.extend_from_slice(&tag.to_le_bytes());
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(value);
}

/// Returns the longest prefix of `text` with at most `bytes_max` bytes and whole characters.
pub(super) fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

#[cfg(test)]
mod tests {
    use super::*;

    static TAGS_OF_TEST: Tags = Tags { single: &[1, 2], repeated: Some(4) };

    fn body(records: &[(u16, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        records.iter().for_each(|(tag, value)| write(&mut out, *tag, value));
        out
    }

    fn read(body: &[u8]) -> Result<Records<'_>, DecodeError> {
        Records::read(Kind::Ping, &TAGS_OF_TEST, body)
    }

    fn error(body: &[u8]) -> DecodeError {
        read(body).err().unwrap()
    }

    #[test]
    fn read__in_any_order_skipping_the_unknown() {
        let body = body(&[(2, &[7, 0]), (9, &[1]), (4, &[5]), (1, &[3]), (4, &[])]);
        let records = read(&body).unwrap();
        assert_eq!(records.u8(1), Ok(3));
        assert_eq!(records.u16(2), Ok(7));
        assert_eq!(records.repeated(), [&[5][..], &[]]);
    }

    #[test]
    fn read__refuses_what_does_not_fit() {
        let kind = Kind::Ping;
        let whole = body(&[(1, &[3])]);
        for end in 1..whole.len() {
            assert_eq!(error(&whole[..end]), DecodeError::RecordsDoNotFit { kind });
        }
        let twice = body(&[(1, &[3]), (1, &[3])]);
        assert_eq!(error(&twice), DecodeError::RecordRepeated { kind, tag: 1 });
        let nine = body(&[(4, &[] as &[u8]); 9]);
        assert_eq!(error(&nine), DecodeError::RecordRepeated { kind, tag: 4 });
        let critical = body(&[(0x8001, &[])]);
        assert_eq!(error(&critical), DecodeError::RecordUnknown { kind, tag: 0x8001 });
    }

    #[test]
    fn getters__missing_length_and_text() {
        let kind = Kind::Ping;
        let body = body(&[(1, &[0xFF, 0xFE])]);
        let records = read(&body).unwrap();
        assert_eq!(records.u32(2), Err(DecodeError::RecordMissing { kind, tag: 2 }));
        assert_eq!(records.u32(1), Err(DecodeError::RecordLength { kind, tag: 1 }));
        assert_eq!(records.text(1, 1), Err(DecodeError::RecordLength { kind, tag: 1 }));
        assert_eq!(records.text(1, 2), Err(DecodeError::RecordText { kind, tag: 1 }));
    }

    panics! {
        // A tag that the table lacks would seem absent from each message.
        optional__of_a_tag_of_another_message: "a message is read by its own tags"
            => read(&[]).unwrap().optional(5);
        repeated__of_a_message_without_a_list: "a list is read of a message that has one" => {
            static NO_LIST: Tags = Tags { single: &[1], repeated: None };
            Records::read(Kind::Ping, &NO_LIST, &[]).unwrap().repeated();
        };
    }

    #[test]
    fn cut__keeps_characters_whole() {
        assert_eq!(cut("grün", 4), "grü");
        assert_eq!(cut("grün", 3), "gr");
        assert_eq!(cut("grün", 99), "grün");
        assert_eq!(cut("ü", 1), "");
    }

    panics! {
        read__of_a_message_with_a_tag_beyond_the_table:
            "the tags of a message have places in the table" => {
            static BEYOND: Tags = Tags { single: &[TAGS as u16], repeated: None };
            let _ = Records::read(Kind::Ping, &BEYOND, &[]);
        };
    }
}
