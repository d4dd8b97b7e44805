//! The memory of connections at rest. The allocator counts for the whole process, so the test is alone in it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use petrel::security::{SecureStream, Security};
use petrel_tls::issue::{Authority, Subject};
use petrel_tls::{Credentials, CredentialsBuilder};

/// Most bytes of an end at rest, without the 2 contexts of its ciphers, which AWS-LC allocates in C (0.6 KiB each).
const END_BYTES_MAX: usize = 8 * 1024;

static BYTES: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: Both functions pass their arguments to the system's allocator, whose rules the callers keep.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn carry(from: &mut dyn SecureStream, to: &mut dyn SecureStream) -> usize {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4_096]);
    from.take_output(&mut bytes);
    to.receive(&bytes).unwrap();
    while to.read(&mut buffer) > 0 {}
    bytes.len()
}

fn settle(opener: &mut dyn SecureStream, acceptor: &mut dyn SecureStream) {
    while carry(opener, acceptor) + carry(acceptor, opener) > 0 {}
}

#[test]
fn end__at_rest_after_long_messages() {
    let day = Duration::from_secs(24 * 60 * 60);
    let authority = Authority::new("authority of tests", day).unwrap();
    let of = |name: &str| -> Credentials {
        let issued = authority.issue(&Subject::new(day).name(name)).unwrap();
        Credentials::builder()
            .certificate_pem(issued.certificate.as_bytes())
            .and_then(|builder| builder.key_pem(issued.key.as_bytes()))
            .and_then(|builder| builder.authorities_pem(issued.authority.as_bytes()))
            .and_then(CredentialsBuilder::build)
            .unwrap()
    };
    let (client, server) = (of("client"), of("server"));
    let address = "192.0.2.7:4000".parse().unwrap();
    let pair = || {
        let mut opener = client.connect(address, Some("server")).unwrap();
        let mut acceptor = server.accept().unwrap();
        settle(&mut *opener, &mut *acceptor);
        opener.write(&[1; 50_000]);
        acceptor.write(&[2; 50_000]);
        settle(&mut *opener, &mut *acceptor);
        (opener, acceptor)
    };
    // The cache of tickets is full afterwards, and grows no further.
    let before: Vec<_> = (0..10).map(|_| pair()).collect();

    let pairs: Vec<_> = (0..50).map(|_| pair()).collect();
    let count = pairs.len();
    let (openers, acceptors): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    let of_ends = |ends: Vec<Box<dyn SecureStream>>| {
        let with = BYTES.load(Ordering::Relaxed);
        drop(ends);
        (with - BYTES.load(Ordering::Relaxed)) / count
    };
    let (opener, acceptor) = (of_ends(openers), of_ends(acceptors));
    println!("bytes of an opener at rest: {opener}, of an acceptor: {acceptor}");
    assert!(opener <= END_BYTES_MAX && acceptor <= END_BYTES_MAX, "{opener}, {acceptor}");
    drop(before);
}
