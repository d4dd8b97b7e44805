//! Delivers the frames of sealed datagrams (`docs/wire-protocol.md` §17.3).
//!
//! A train from an address with sealed links may mix sealed and plain datagrams, and datagrams of several links. No address of a sealed link
//! is found as that of a plain peer alone, hence the way of plain datagrams has no check of the mark, nor has the loop over their train.

use super::{FromPort, deliver_bundle, deliver_lone, deliver_plain};
use crate::bundle::BUNDLE_MARK;
use crate::seal::{Refusal, SEALED_MARK, SealedDatagram};
use crate::transport::{FrameHandler, NoReturn, PeerId, TransportStats};
use crate::udp::addr::AddrKey;
use crate::udp::peers::PeerTable;
use crate::udp::receive::Trains;

/// Delivers datagrams of one buffer, from an address, up to about `budget`. Returns the numbers of frames, and the work in frames.
#[inline(never)]
pub(super) fn deliver_some_sealed<H: FrameHandler<NoReturn>>(
    receiver: &mut impl Trains,
    from: AddrKey,
    peers: &mut PeerTable,
    stats: &mut TransportStats,
    budget: usize,
    handler: &mut H,
) -> (usize, usize) {
    let (mut delivered, mut work) = (0, 0);
    loop {
        let datagram = receiver.first_mut();
        let (frames, effort, bytes) = if datagram.first() == Some(&SEALED_MARK) {
            let frames = deliver_sealed(from, datagram, peers, stats, handler);
            (frames, frames.max(1), datagram.len())
        } else {
            let Some(train) = receiver.train() else { unreachable!("the caller has looked at it") };
            deliver_plain(&train.until(SEALED_MARK), peers, stats, budget - work, handler)
        };
        receiver.advance(bytes);
        (delivered, work) = (delivered + frames, work + effort);
        if work >= budget || !receiver.is_within_train() {
            break;
        }
    }
    (delivered, work)
}

/// Opens a datagram, and delivers its frames. Returns their number.
fn deliver_sealed<H: FrameHandler<NoReturn>>(
    from: AddrKey,
    datagram: &mut [u8],
    peers: &mut PeerTable,
    stats: &mut TransportStats,
    handler: &mut H,
) -> usize {
    let Some(sealed) = SealedDatagram::parse(datagram) else {
        stats.rx_dropped_malformed += 1;
        return 0;
    };
    let Some((peer, source, receiver)) = peers.find_sealed(sealed.path(), from) else {
        stats.rx_dropped_unknown_peer += 1;
        return 0;
    };
    match receiver.open(sealed) {
        Ok(plain) if source == 0 => deliver_opened(stats, peer, plain, handler),
        Ok(plain) => deliver_opened(stats, peer, plain, &mut FromPort { handler, source }),
        Err(Refusal::Replayed) => {
            stats.rx_dropped_replayed += 1;
            0
        }
        Err(Refusal::Forged) => {
            stats.rx_dropped_forged += 1;
            peers.note_forgery(peer);
            0
        }
    }
}

/// Delivers the frames of an opened datagram, and returns their number. A sealed datagram contains none of its kind.
fn deliver_opened<H: FrameHandler<NoReturn>>(
    stats: &mut TransportStats,
    peer: PeerId,
    plain: &[u8],
    handler: &mut H,
) -> usize {
    match plain.first() {
        None | Some(&SEALED_MARK) => {
            stats.rx_dropped_malformed += 1;
            0
        }
        Some(&BUNDLE_MARK) => deliver_bundle(stats, peer, plain, handler),
        Some(_) => {
            deliver_lone(stats, peer, plain, handler);
            1
        }
    }
}
