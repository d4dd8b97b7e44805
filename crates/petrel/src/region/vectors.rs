//! The vectors of `docs/wire-vectors.md`, §15.4.

use std::iter::Peekable;

use super::agent::execute;
use crate::region_memory::wire::METHODS;
use crate::region_memory::{Access, Region, RegionMemory, Regions};
use crate::sync::Arc;

const PAGE: &str = include_str!("../../../../docs/wire-vectors.md");

/// Number of blocks on the page: the test must not pass without them.
const VECTORS: usize = 24;

struct Vector {
    name: &'static str,
    method: u16,
    request: Vec<u8>,
    /// The response, or the name of a status.
    answer: Result<Vec<u8>, &'static str>,
}

fn vectors() -> Vec<Vector> {
    let blocks = PAGE.split("\n```region-vector\n").skip(1);
    blocks.map(|block| vector(block.split("\n```").next().expect("a block"))).collect()
}

fn vector(block: &'static str) -> Vector {
    let mut lines = block.lines().peekable();
    let value = |lines: &mut Peekable<_>, key| -> &'static str {
        let line: &'static str = lines.next().expect("a line");
        line.strip_prefix(key).unwrap_or_else(|| panic!("{key} expected in {block}")).trim()
    };
    let name = value(&mut lines, "name:");
    let method = value(&mut lines, "method:");
    let method = method.rsplit(' ').next().and_then(|number| number.parse().ok());
    value(&mut lines, "request:");
    let request = bytes(&mut lines);
    let answer = match lines.peek().and_then(|line| line.strip_prefix("status: ")) {
        Some(status) => Err(status),
        None => {
            value(&mut lines, "response:");
            Ok(bytes(&mut lines))
        }
    };
    Vector { name, method: method.expect("a number"), request, answer }
}

/// Reads the lines of hexadecimal digits that come next.
fn bytes(lines: &mut Peekable<impl Iterator<Item = &'static str>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(line) = lines.next_if(|line| line.starts_with("  ")) {
        let digits = line.split_whitespace();
        bytes.extend(digits.map(|digits| u8::from_str_radix(digits, 16).expect("two digits")));
    }
    bytes
}

fn registered(regions: &Regions) -> [Region; 2] {
    let register = |secret, bytes, access| {
        let memory = RegionMemory::private(bytes).expect("some bytes");
        regions.register_under(secret, Arc::new(memory), access).expect("private memory")
    };
    let all = Access::READ | Access::WRITE | Access::ATOMIC;
    let both = [
        register(0x0807_0605_0403_0201, 64, all),
        register(0x1817_1615_1413_1211, 8, Access::READ),
    ];
    both[0].write(40, &[1]).expect("within the region");
    both[1].write(0, &[0xAA; 8]).expect("within the region");
    both
}

#[test]
fn execute__of_the_vectors() {
    let (regions, all) = (Regions::new(), vectors());
    let _registered = registered(&regions);
    assert_eq!(all.len(), VECTORS);
    for Vector { name, method, request, answer } in all {
        let mut response = Vec::new();
        let outcome = execute(&regions, method, &request, &mut response);
        let outcome = outcome.map(|()| response).map_err(|status| status.name());
        assert_eq!(outcome, answer, "{name}");
    }
}

#[test]
fn vectors__have_each_method() {
    let all = vectors();
    assert!(METHODS.iter().all(|method| all.iter().any(|vector| vector.method == *method)));
}
