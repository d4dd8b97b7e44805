//! Decimal numbers.

/// Parses an unsigned number: digits alone, below 2^64.
pub(crate) fn unsigned(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |number, byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit < 10).then_some(())?;
        number.checked_mul(10)?.checked_add(digit.into())
    })
}

/// Parses a number with an optional sign.
pub(crate) fn signed(text: &[u8]) -> Option<i64> {
    match text {
        [b'-', digits @ ..] => i64::try_from(unsigned(digits)?).ok().map(|number| -number),
        digits => i64::try_from(unsigned(digits)?).ok(),
    }
}

#[inline]
pub(crate) fn put(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}
