//! Random numbers of the operating system.

/// A random number from the operating system.
pub(super) fn random_u64() -> std::io::Result<u64> {
    random_bytes().map(u64::from_ne_bytes)
}

/// Random bytes from the operating system.
pub(super) fn random_bytes<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    fill_random(&mut bytes)?;
    Ok(bytes)
}

/// Fills a slice with random bytes from the operating system.
pub(super) fn fill_random(bytes: &mut [u8]) -> std::io::Result<()> {
    getrandom::fill(bytes).map_err(|error| std::io::Error::other(error.to_string()))
}
