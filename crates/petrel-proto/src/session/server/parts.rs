//! The state of a server slot for recovery and for messages of several packets.

use crate::bitmap::{Insert, Window, Words};
use crate::buffer::{Buffer, Destination, Placed};
use crate::recovery::answer::Resends;
use crate::session::backlog::NEVER;
use crate::session::free_list::Reusable;

/// State of a slot for recovery and for messages of several packets.
pub(crate) struct ServerParts<B> {
    /// Packets of the request that have arrived.
    arrived: Window,
    /// The request while its packets arrive.
    request: Option<B>,
    /// The application's memory for the request, instead of the buffer.
    placed: Option<Placed>,
    /// The request's deadline, as known so far; or [`NEVER`].
    deadline_ns: u64,
    /// Packets of the response to send again.
    resends: Resends,
    /// The text of an error that the core itself answers. No buffer is needed: the pool may be empty.
    refusal: Option<&'static str>,
}

impl<B> Reusable for ServerParts<B> {
    fn fresh() -> Self {
        Self {
            arrived: Window::new(),
            request: None,
            placed: None,
            deadline_ns: NEVER,
            resends: Resends::new(),
            refusal: None,
        }
    }

    fn reset(&mut self) {
        *self = Self::fresh();
    }
}

impl<B> ServerParts<B> {
    /// Stores the buffer of a request that begins to arrive.
    pub(super) fn begin_request(&mut self, request: B) {
        assert!(self.request.is_none(), "a request arrives in one buffer");
        assert!(self.arrived.count() == 0, "the packets of a request come after its buffer");
        self.request = Some(request);
    }

    /// Lets the packets of the request be stored in memory of the application.
    pub(super) fn place_in(&mut self, placed: Placed) {
        assert!(self.request.is_some(), "a placed request has a buffer, without its bytes");
        assert!(self.arrived.count() == 0, "the packets of a request come after its destination");
        self.placed = Some(placed);
    }

    #[inline]
    pub(super) fn store(&mut self, offset: usize, bytes: &[u8])
    where
        B: Buffer,
    {
        if let Some(placed) = &mut self.placed {
            placed.store(offset, bytes);
        } else if let Some(request) = &mut self.request {
            request.storage_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Takes the application's memory of a request that was taken whole.
    pub(super) fn take_placed(&mut self) -> Option<Placed> {
        assert!(self.request.is_none(), "the destination follows the request");
        self.placed.take()
    }

    /// Returns true if packets of the arriving request have had an effect (`Destination::has_effect`).
    pub(super) fn has_effect(&self) -> bool {
        self.placed.as_ref().is_some_and(Placed::has_effect)
    }

    pub(super) fn has_request(&self) -> bool {
        self.request.is_some()
    }

    /// Frees the buffer of the request.
    #[inline]
    pub(super) fn drop_request(&mut self) {
        self.request = None;
        self.placed = None;
    }

    /// Takes the request, of which all `packets` have arrived.
    pub(super) fn take_whole(&mut self, packets: u32) -> Option<B> {
        assert!(
            self.arrived.cumulative() == packets && self.arrived.end() == packets,
            "a request is handed over when exactly its packets have arrived"
        );
        self.request.take()
    }

    /// Returns the cumulative arrival: lower packets of the request have arrived.
    #[inline]
    pub(super) fn arrived_below(&self) -> u32 {
        self.arrived.cumulative()
    }

    /// Returns the arrived packets from the cumulative arrival on.
    #[inline]
    pub(super) fn arrived_words(&self) -> &Words {
        self.arrived.words()
    }

    #[inline]
    pub(super) fn arrive(&mut self, packet: u32) -> Insert {
        self.arrived.insert(packet)
    }

    /// Returns the next packet of the request, if no later one has arrived.
    #[inline(always)]
    pub(super) fn next_in_order(&self) -> Option<u32> {
        self.arrived.next_in_order()
    }

    /// Notes the packet that [`ServerParts::next_in_order`] returned. Returns the place of its bytes in the
    /// request.
    #[inline(always)]
    pub(super) fn arrive_in_order(&mut self, offset: usize, len: usize) -> Option<&mut [u8]>
    where
        B: Buffer,
    {
        let Self { arrived, request: Some(request), .. } = self else { return None };
        let place = request.storage_mut().get_mut(offset..offset + len)?;
        arrived.insert_next();
        Some(place)
    }

    /// Notes the packet that [`ServerParts::next_in_order`] returned, if the request is put together in a destination of this
    /// type. Returns the destination, in which the caller stores the packet.
    pub(super) fn place_in_order<D: Destination>(&mut self) -> Option<&mut D> {
        let destination = self.placed.as_mut()?.get_mut()?;
        self.arrived.insert_next();
        Some(destination)
    }

    /// Returns true if a packet may arrive in the buffer, and neither this one nor packet `last` has arrived. The packets of
    /// a placed request have no place in its buffer.
    #[inline(always)]
    pub(super) fn lacks(&self, packet: u32, last: u32) -> bool {
        let has_buffer = self.request.is_some() && self.placed.is_none();
        has_buffer && !self.arrived.contains(last) && self.arrived.lacks(packet)
    }

    /// Notes a packet that the request [lacks](ServerParts::lacks). Returns the place of its bytes in the request.
    // The insertion comes last, since it may call a function.
    #[inline(always)]
    pub(super) fn arrive_early(&mut self, packet: u32, offset: usize, len: usize) -> &mut [u8]
    where
        B: Buffer,
    {
        let Self { arrived, request: Some(request), .. } = self else {
            unreachable!("a request that lacks a packet has a buffer");
        };
        let place = &mut request.storage_mut()[offset..offset + len];
        arrived.insert_lacking(packet);
        place
    }

    /// Returns the request's deadline, as known so far; or [`NEVER`].
    #[inline]
    pub(super) fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// Notes the deadline that a packet carries, or [`NEVER`].
    #[inline]
    pub(super) fn note_deadline(&mut self, deadline_ns: u64) {
        self.deadline_ns = self.deadline_ns.min(deadline_ns);
    }

    #[inline]
    pub(super) fn resends(&self) -> &Resends {
        &self.resends
    }

    #[inline]
    pub(super) fn resends_mut(&mut self) -> &mut Resends {
        &mut self.resends
    }

    /// Returns the text of an error that the core itself answers.
    pub(super) fn refusal(&self) -> Option<&'static str> {
        self.refusal
    }

    pub(super) fn set_refusal(&mut self, text: &'static str) {
        assert!(self.request.is_none(), "a refused request holds no buffer");
        self.refusal = Some(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    panics! {
        take_whole__of_a_request_with_a_packet_missing: "exactly its packets have arrived" => {
            let mut parts = ServerParts::<Vec<u8>>::fresh();
            [0, 2].into_iter().for_each(|packet| _ = parts.arrive(packet));
            parts.take_whole(3);
        };
        begin_request__twice: "a request arrives in one buffer" => {
            let mut parts = ServerParts::fresh();
            (0..2).for_each(|_| parts.begin_request(vec![1]));
        };
        set_refusal__while_the_request_arrives: "a refused request holds no buffer" => {
            let mut parts = ServerParts::fresh();
            parts.begin_request(vec![1]);
            parts.set_refusal("no");
        };
    }
}
