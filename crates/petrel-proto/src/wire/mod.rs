//! The frame layer, exactly as `docs/wire-protocol.md` §3 specifies.
//!
//! Parsers accept any bytes, never allocate, and never read beyond their slice. The core parses in two steps:
//! first the common [`Header`], then the fields of the kind where they are used. [`Frame`] does both at once,
//! for traces, tests and tools. [`Marks`] and [`Order`] read and write the extensions that a link must agree on
//! first; other links skip them.

mod announce;
mod control;
mod extension;
mod header;
mod marks;
mod order;
mod part;

pub use announce::Announcement;
pub(crate) use control::ControlBytes;
pub use control::{Credit, Pull, check_cancel, check_probe};
pub(crate) use extension::word_left_us;
pub use extension::{Extensions, deadline_word, read_extensions, skip_extensions};
pub use header::{ANSWERED_LATER, Destination, Flags, Header, Kind, REFUSED, VERSION};
pub use marks::Marks;
pub use order::Order;
pub(crate) use order::{SEQUENCE_MASK, sequence_ahead};
pub use part::Part;
pub(crate) use part::part_words;

pub(crate) use header::{first_bits, to_bytes as header_bytes, words as header_words};

use core::fmt;

/// A frame of another version, or in violation of its kind's rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed frame: {0}")]
pub struct Malformed(pub &'static str);

/// A whole frame, parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The common header.
    pub header: Header,
    /// The fields of the kind.
    pub fields: Fields,
    /// The contents of the extension block.
    pub extensions: Extensions,
    /// The payload; empty for CREDIT, PULL and CANCEL.
    pub payload: &'a [u8],
}

/// The fixed fields of a kind, with the bitmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fields {
    /// REQUEST, RESPONSE and CANCEL: no fields.
    None,
    /// REQUEST_PART and RESPONSE_PART.
    Part(Part),
    /// CREDIT.
    Credit(Credit),
    /// PULL.
    Pull(Pull),
}

impl<'a> Frame<'a> {
    /// Parses a frame.
    ///
    /// # Errors
    /// [`Malformed`] with the violated rule.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, rest) = Header::parse(bytes)?;
        let none = Extensions::default();
        let (fields, extensions, payload) = match header.kind {
            Kind::Request | Kind::Response => {
                let (extensions, payload) = read_extensions(header.flags, rest)?;
                (Fields::None, extensions, payload)
            }
            Kind::RequestPart | Kind::ResponsePart | Kind::Multicast | Kind::Announce => {
                let (part, extensions, payload) = Part::parse(header.flags, rest)?;
                (Fields::Part(part), extensions, payload)
            }
            Kind::Credit => (Fields::Credit(Credit::parse(header.flags, rest)?), none, &[][..]),
            Kind::Pull => (Fields::Pull(Pull::parse(header.flags, rest)?), none, &[][..]),
            Kind::Cancel => {
                check_cancel(header.flags, rest)?;
                (Fields::None, none, &[][..])
            }
            Kind::Probe => {
                check_probe(header.flags, rest)?;
                (Fields::None, none, &[][..])
            }
        };
        Ok(Self { header, fields, extensions, payload })
    }
}

/// One line for people, for example `REQUEST s7 r42 m1 5 B`.
impl fmt::Display for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = &self.header;
        write!(f, "{} s{} r{}", header.kind.name(), header.session, header.request)?;
        match header.kind {
            Kind::Request | Kind::RequestPart | Kind::Announce => write!(f, " m{}", header.aux)?,
            Kind::Response if header.aux as u8 != 0 => {
                write!(f, " status {}", header.aux as u8)?;
                f.write_str(if header.aux & REFUSED != 0 { " refused" } else { "" })?;
            }
            _ => {}
        }
        match self.fields {
            Fields::None if matches!(header.kind, Kind::Cancel | Kind::Probe) => {}
            Fields::None => write!(f, " {} B", self.payload.len())?,
            Fields::Part(part) => write!(
                f,
                " p{} of {} B, {} B, grant {}",
                part.packet,
                part.size,
                self.payload.len(),
                part.grant
            )?,
            Fields::Credit(credit) => {
                write!(f, " up to {}, echo {}", credit.cumulative, credit.echo)?;
            }
            Fields::Pull(pull) => write!(
                f,
                " up to {}, limit {}, again below {}",
                pull.cumulative, pull.limit, pull.resend_below
            )?,
        }
        if let Some(left_us) = self.extensions.deadline_us {
            write!(f, " deadline {left_us} us")?;
        }
        if header.flags.congestion() {
            f.write_str(" congestion")?;
        }
        if header.flags.waits() && header.kind == Kind::Credit {
            f.write_str(", waits")?;
        }
        if header.flags.repeats() { f.write_str(" again") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
