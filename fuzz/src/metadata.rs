//! The bodies of calls with metadata, and the details of errors.

use petrel::service::{Metadata, check_details};

/// Parses any bytes as a body and as details. Entries that are read survive being written.
pub fn check(data: &[u8]) {
    check_details(data);
    let Some((message, metadata)) = Metadata::split(data) else { return };
    let mut again = message.to_vec();
    metadata.append_to(&mut again);
    assert_eq!(again, data);
    let mut copy = Metadata::new();
    for entry in metadata.iter() {
        let first = metadata.get_bytes(entry.key).expect("a key with a value");
        let text = metadata.get(entry.key);
        assert_eq!(text.is_none(), entry.key.ends_with("-bin"), "{}", entry.key);
        assert!(text.is_none_or(|text| text.as_bytes() == first));
        let insert = if entry.is_inherited { Metadata::insert_inherited } else { Metadata::insert };
        insert(&mut copy, entry.key, entry.value).expect("an entry that was read");
    }
    let mut inherited = Metadata::new();
    inherited.inherit(&metadata).expect("no more than there was");
    assert!(inherited.iter().all(|entry| entry.is_inherited));
}
