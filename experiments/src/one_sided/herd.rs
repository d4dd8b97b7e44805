//! HERD's GETs (Kalia et al., SIGCOMM 2014, §4): the client WRITEs its request over an unreliable connection into the *request region* of the
//! server, whose core polls the region and answers by a SEND over an unreliable datagram.
//!
//! A slot of the region has 1 KiB. The request stands at its end, since a card writes from left to right: the key comes last, and the core
//! sees a request whole once its key is there (§4.2). A key of zeros is no request.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use petrel_command::failure::Failure;
use petrel_transport::transport::{PeerId, Transport};
use petrel_transport::verbs::{
    AccessError, Accessor, Card, Kind, Lending, Rights, Verbs, VerbsConfig, VerbsLink,
};
use petrel_transport::wake::Waker;
use petrel_transport::words::WordMemory;

use super::{Carried, Gets, KEY_BYTES, Key, connect, key_of, memory, value_of};

const SLOT_BYTES: usize = 1 << 10;
const KEY_AT: u64 = (SLOT_BYTES - KEY_BYTES) as u64;

/// The first byte of an answer with a value; the other answers have one byte, 0.
const FOUND: u8 = 1;

/// The pause of a client that waits for the server's card.
const PAUSE: Duration = Duration::from_millis(100);

/// The time after which an answer is lost: neither the request nor the answer is sent again, as in HERD (§3.3).
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) struct Client {
    near: Accessor,
    verbs: Verbs,
    carried: Carried,
    stop: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
    // The connection ends with this value.
    _lent: Lending,
}

/// Returns an end for datagrams, with room for the answers of a client.
fn datagrams(card: &str) -> Result<Verbs, Failure> {
    let config =
        VerbsConfig { card: card.to_owned(), receives: 64, sends: 64, ..VerbsConfig::default() };
    let waker = Waker::new().map_err(Failure::because)?;
    Verbs::open(&config, waker).map_err(Failure::because)
}

/// Returns the link to an end of the same host.
fn link_to(verbs: &Verbs) -> VerbsLink {
    VerbsLink { address: verbs.address(), max_frame: verbs.frame_bytes(), ecn: false }
}

impl Client {
    /// Starts a server of some items on a thread of its own, and connects to it.
    pub(super) fn start(
        name: &str,
        card: &Arc<Card>,
        items: usize,
        value: usize,
    ) -> Result<Self, Failure> {
        let region = Arc::new(memory(SLOT_BYTES)?);
        let rights = Rights { read: false, write: true };
        let (near, lent) = connect(card, Kind::Unreliable, &region, rights)?;
        let (mut verbs, mut answers) = (datagrams(name)?, datagrams(name)?);
        verbs.add_peer(link_to(&answers)).map_err(Failure::because)?;
        let client = answers.add_peer(link_to(&verbs)).map_err(Failure::because)?;
        let table = (0..items as u64).map(|item| (key_of(item), value_of(item, value))).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let server = thread::spawn({
            let stop = Arc::clone(&stop);
            move || serve(&region, &table, &mut answers, client, &stop)
        });
        let carried = Carried::default();
        let mut this = Self { near, verbs, carried, stop, server: Some(server), _lent: lent };
        this.meet().map_err(Failure::because)?;
        Ok(this)
    }

    /// Repeats a request until the server's card knows the client's place in the network, before which answers are lost.
    fn meet(&mut self) -> Result<(), AccessError> {
        let until = Instant::now() + PATIENCE;
        while self.ask(&key_of(u64::MAX - 1), PAUSE)?.is_none() {
            if Instant::now() > until {
                return Err(AccessError::Lost(u32::MAX));
            }
        }
        thread::sleep(PAUSE);
        while self.verbs.rx_burst(1, |_, _| ()) > 0 {}
        Ok(())
    }

    /// Sends a request; returns the answer, if one comes in time.
    fn ask(&mut self, key: &Key, patience: Duration) -> Result<Option<Vec<u8>>, AccessError> {
        self.near.write(KEY_AT, &to_wire(*key))?;
        self.carried.writes += 1;
        self.carried.bytes += KEY_BYTES as u64;
        let (until, mut answer) = (Instant::now() + patience, None);
        while answer.is_none() && Instant::now() < until {
            self.verbs.rx_burst(1, |_, frame| answer = Some(frame.to_vec()));
            thread::yield_now();
        }
        let answer: Option<Vec<u8>> = answer;
        self.carried.sends += u64::from(answer.is_some());
        self.carried.bytes += answer.as_ref().map_or(0, Vec::len) as u64;
        Ok(answer)
    }
}

/// Answers requests until it is told to stop.
fn serve(
    region: &WordMemory,
    table: &HashMap<Key, Vec<u8>>,
    answers: &mut Verbs,
    client: PeerId,
    stop: &AtomicBool,
) {
    while !stop.load(Ordering::Relaxed) {
        let mut key = [0; KEY_BYTES];
        region.read(KEY_AT, &mut key);
        // Each half of a key is a word, which is written as a whole.
        if key[..8] == [0; 8] || key[8..] == [0; 8] {
            // The card may have learnt the client's place in the network.
            answers.rx_burst(1, |_, _| ());
            thread::yield_now();
            continue;
        }
        region.write(KEY_AT, &[0; KEY_BYTES]);
        let key = of_wire(key);
        let answer = match table.get(&key) {
            Some(value) => [&[FOUND], &value[..]].concat(),
            None => vec![0],
        };
        // SAFETY: the answer stays unchanged until the flush.
        let is_taken = unsafe { answers.push(client, &answer, &[]) };
        assert!(is_taken, "the ring has room for the only answer");
        answers.flush();
    }
}

/// A key in the region: the number of an item may be zero, and a half of a request's key may not.
fn to_wire(mut key: Key) -> Key {
    let item = u64::from_le_bytes(std::array::from_fn(|at| key[8 + at]));
    key[8..].copy_from_slice(&(item + 1).to_le_bytes());
    key
}

fn of_wire(mut key: Key) -> Key {
    let item = u64::from_le_bytes(std::array::from_fn(|at| key[8 + at]));
    key[8..].copy_from_slice(&(item - 1).to_le_bytes());
    key
}

impl Gets for Client {
    fn get(&mut self, key: &Key) -> Result<Option<Vec<u8>>, AccessError> {
        let answer = self.ask(key, PATIENCE)?.ok_or(AccessError::Lost(u32::MAX))?;
        Ok((answer[0] == FOUND).then(|| answer[1..].to_vec()))
    }

    fn carried(&self) -> Carried {
        self.carried
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let server = self.server.take().expect("a client has a server until it is dropped");
        assert!(server.join().is_ok(), "the server has not panicked");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn to_wire__has_no_half_of_zeros() {
        for item in [0, 1, 255, u64::from(u32::MAX)] {
            let wire = to_wire(key_of(item));
            assert!(wire[..8] != [0; 8] && wire[8..] != [0; 8]);
            assert_eq!(of_wire(wire), key_of(item));
        }
    }
}
