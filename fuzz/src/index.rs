//! The messages of the ordered index.

use petrel_index::wire::{
    DeleteBytes, DeleteWord, Echo, GetBytes, GetWord, Method, PutBytes, PutWord, ScanBytes,
    ScanWords, Status, SumWords,
};

/// Parses the bytes after the first as a message of the method that the first chooses, as request and as
/// response. A decoded request must survive encoding; for a response the value must.
pub fn check(data: &[u8]) {
    let Some((choice, message)) = data.split_first() else { return };
    match choice % 11 {
        0 => both::<GetWord>(message),
        1 => both::<PutWord>(message),
        2 => both::<DeleteWord>(message),
        3 => both::<SumWords>(message),
        4 => both::<ScanWords>(message),
        5 => both::<GetBytes>(message),
        6 => both::<PutBytes>(message),
        7 => both::<DeleteBytes>(message),
        8 => both::<ScanBytes>(message),
        9 => both::<Status>(message),
        _ => both::<Echo>(message),
    }
}

fn both<M: Method>(message: &[u8]) {
    match M::decode_request(message) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(request) => {
            // Some bytes of a scan without a first key are reserved, so the encoding may differ from the
            // input.
            let again = M::encode_request(&request);
            assert!(again.len() <= message.len(), "{}", M::NAME);
            let request = M::decode_request(&again).expect("what is written can be read");
            assert_eq!(M::encode_request(&request), again, "{}", M::NAME);
        }
    }
    match M::decode_response(message) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(response) => {
            let again = M::encode_response(&response);
            assert_eq!(M::decode_response(&again).as_ref(), Ok(&response), "{}", M::NAME);
        }
    }
}
