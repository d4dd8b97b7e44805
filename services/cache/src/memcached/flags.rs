//! The flags of meta commands.

use super::operation::{MetaCommand, MetaParams};
use super::replies::{BAD_FORMAT, BAD_TOKEN};
use crate::limits::OPAQUE_BYTES_MAX;
use crate::numbers::{signed, unsigned};
use crate::partition::Verb;

/// The flags of a line: a letter each, with a token behind it.
pub(super) fn each(flags: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    flags
        .split(|byte| *byte == b' ')
        .filter_map(|word| word.split_first().map(|(c, token)| (*c, token)))
}

/// Parses the flags of a command.
///
/// # Errors
/// The reply to flags that are wrong.
pub(super) fn parse(command: MetaCommand, flags: &[u8]) -> Result<MetaParams, &'static [u8]> {
    let mut params = MetaParams::default();
    let mut seen = [false; 128];
    for (letter, token) in each(flags) {
        let seen = seen.get_mut(usize::from(letter)).ok_or(INVALID)?;
        if std::mem::replace(seen, true) {
            return Err(b"CLIENT_ERROR duplicate flag\r\n");
        }
        params.set(command, letter, token)?;
    }
    Ok(params)
}

const INVALID: &[u8] = b"CLIENT_ERROR invalid flag\r\n";
const NUMBER: &[u8] = b"CLIENT_ERROR invalid or duplicate flag\r\n";

impl MetaParams {
    fn set(&mut self, command: MetaCommand, letter: u8, token: &[u8]) -> Result<(), &'static [u8]> {
        match letter {
            b'b' => self.is_base64 = true,
            b'q' => self.is_quiet = true,
            b'v' => self.wants_value = true,
            b'u' => self.is_silent = true,
            b'I' => self.invalidates = true,
            b'T' => self.exptime = Some(signed(token).ok_or(BAD_TOKEN)?),
            b'N' => self.vivify = Some(signed(token).ok_or(BAD_TOKEN)?),
            b'R' => {
                let seconds = signed(token).ok_or(BAD_TOKEN)?;
                self.recache_s = Some(u32::try_from(seconds).unwrap_or(0));
            }
            b'C' => self.compare = Some(unsigned(token).ok_or(BAD_TOKEN)?),
            b'D' => self.delta = unsigned(token).ok_or(NUMBER)?,
            b'J' => self.initial = unsigned(token).ok_or(NUMBER)?,
            b'F' => {
                let flags = unsigned(token).and_then(|flags| u32::try_from(flags).ok());
                self.client_flags = flags.ok_or(BAD_FORMAT)?;
            }
            b'M' => self.set_mode(command, token)?,
            b'O' if token.len() > OPAQUE_BYTES_MAX => {
                return Err(b"CLIENT_ERROR opaque token too long\r\n");
            }
            // Flags of the reply; P and L are hints for proxies.
            b'c' | b'f' | b'h' | b'k' | b'l' | b's' | b't' | b'O' | b'P' | b'L' => {}
            _ => return Err(INVALID),
        }
        Ok(())
    }

    fn set_mode(&mut self, command: MetaCommand, token: &[u8]) -> Result<(), &'static [u8]> {
        let &[mode] = token else { return Err(b"CLIENT_ERROR incorrect length for M token\r\n") };
        match (command, mode) {
            (MetaCommand::Set, b'E' | b'e') => self.verb = Verb::Add,
            (MetaCommand::Set, b'A' | b'a') => self.verb = Verb::Append,
            (MetaCommand::Set, b'P' | b'p') => self.verb = Verb::Prepend,
            (MetaCommand::Set, b'R' | b'r') => self.verb = Verb::Replace,
            (MetaCommand::Set, b'S' | b's') => self.verb = Verb::Set,
            (MetaCommand::Set, _) => return Err(b"CLIENT_ERROR invalid mode for ms M token\r\n"),
            (MetaCommand::Count, b'I' | b'i' | b'+') => self.is_increment = true,
            (MetaCommand::Count, b'D' | b'd' | b'-') => self.is_increment = false,
            (MetaCommand::Count, _) => return Err(b"CLIENT_ERROR invalid mode for ma M token\r\n"),
            (MetaCommand::Get | MetaCommand::Delete | MetaCommand::Debug, _) => {}
        }
        Ok(())
    }
}
