//! The application's state, which an endpoint owns and lends to handlers and continuations.

use std::any::Any;
#[cfg(debug_assertions)]
use std::any::TypeId;
use std::marker::PhantomData;
use std::ptr;

/// A lent state without its type: the event loop is compiled once, for all types of states.
///
/// The type is fixed when the endpoint is made. All closures registered or called through an `Endpoint<S>`, or a
/// `Context<'_, S>` of its own, expect an `S`. Nothing else makes a closure that expects a type.
pub(crate) struct State<'a> {
    place: *mut (),
    #[cfg(debug_assertions)]
    type_id: TypeId,
    lent: PhantomData<&'a mut ()>,
}

impl<'a> State<'a> {
    #[inline(always)]
    pub(crate) fn of(state: &'a mut dyn Any) -> Self {
        Self {
            #[cfg(debug_assertions)]
            type_id: (*state).type_id(),
            place: ptr::from_mut(state).cast(),
            lent: PhantomData,
        }
    }

    /// Lends the state for a shorter time.
    pub(crate) fn reborrow(&mut self) -> State<'_> {
        State {
            place: self.place,
            #[cfg(debug_assertions)]
            type_id: self.type_id,
            lent: PhantomData,
        }
    }

    /// Returns the state by its type.
    ///
    /// # Safety
    /// It is an `S`.
    #[inline(always)]
    pub(crate) unsafe fn get<S: 'static>(self) -> &'a mut S {
        #[cfg(debug_assertions)]
        assert!(self.type_id == TypeId::of::<S>(), "the state has another type");
        // SAFETY: the state has this type by the caller's promise, and is lent for `'a`.
        unsafe { &mut *self.place.cast::<S>() }
    }
}
