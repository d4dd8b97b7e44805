//! Datagrams of unknown senders: noise, guesses, truncated and padded frames.

/// Returns a datagram that is a function of `number`.
pub fn datagram(number: u64) -> Vec<u8> {
    let random = noise(1_500, number);
    let cut = (number as usize * 7) % 1_400;
    match number % 6 {
        0 => random[..cut].to_vec(),
        // The header of a REQUEST with a guessed session and token.
        1 => [&[0x10, 0, 0, 0][..], &random[..60]].concat(),
        // A bundle with lengths that do not fill it.
        2 => [&[0x0F, 200, 0][..], &random[..100]].concat(),
        // A bundle of many tiny frames.
        3 => std::iter::once(0x0F).chain([1, 0, 0x10].repeat(300)).collect(),
        // Every kind, version 1, truncated.
        4 => vec![0x10 | (number / 6 % 16) as u8; (number / 6 % 40) as usize],
        _ => b"GET / HTTP/1.1\r\nHost: petrel\r\n\r\n".to_vec(),
    }
}

/// Returns bytes that differ from call to call and place to place.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}
