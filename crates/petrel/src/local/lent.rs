//! The endpoint and the application's state, lent to tasks while these are polled.

use std::any::Any;
#[cfg(debug_assertions)]
use std::any::TypeId;
use std::cell::{Cell, RefCell};
use std::mem;
use std::ptr::NonNull;

use crate::endpoint::State;

/// The lent values. Futures stand below the endpoint and do not know its type: a hub is lent one type only.
#[derive(Default)]
pub(super) struct Lent {
    /// The application's state, while tasks are polled.
    state: RefCell<Option<Box<dyn Any>>>,
    /// The endpoint, while tasks are polled and do not use it.
    endpoint: Cell<Option<NonNull<()>>>,
    #[cfg(debug_assertions)]
    type_id: Cell<Option<TypeId>>,
}

impl Lent {
    /// Lends the endpoint, and the state out of its box.
    pub(super) fn lend<E: 'static>(&self, state: &mut Box<dyn Any>, endpoint: &mut E) {
        let before = self.state.replace(Some(mem::replace(state, Box::new(()))));
        assert!(before.is_none(), "the state is lent once at a time");
        #[cfg(debug_assertions)]
        self.type_id.set(Some(TypeId::of::<E>()));
        self.endpoint.set(Some(NonNull::from(endpoint).cast()));
    }

    /// Ends the loan, and puts the state back into its box.
    pub(super) fn end(&self, state: &mut Box<dyn Any>) {
        self.endpoint.set(None);
        *state = self.state.take().expect("a state that was lent comes back");
    }

    /// Returns true if the endpoint is lent and not in use.
    #[inline]
    pub(super) fn has_endpoint(&self) -> bool {
        self.endpoint.get().is_some()
    }

    /// Runs a closure with the endpoint, if it is lent and not in use.
    ///
    /// # Safety
    /// Each loan of this hub is of an `E`.
    #[inline(always)]
    pub(super) unsafe fn try_with_endpoint<E: 'static, R>(
        &self,
        run: impl FnOnce(&mut E) -> R,
    ) -> Option<R> {
        /// Puts it back even after a panic.
        struct InUse<'a>(&'a Lent, NonNull<()>);

        impl Drop for InUse<'_> {
            fn drop(&mut self) {
                self.0.endpoint.set(Some(self.1));
            }
        }

        let in_use = InUse(self, self.endpoint.take()?);
        #[cfg(debug_assertions)]
        assert!(self.type_id.get() == Some(TypeId::of::<E>()), "the endpoint has another type");
        // SAFETY: of this type by the caller's promise. The loan borrows the endpoint exclusively while the pointer is
        // set, and the pointer is unset during this use.
        Some(run(unsafe { in_use.1.cast::<E>().as_mut() }))
    }

    /// Runs a closure with the state.
    pub(super) fn with_state<R>(&self, run: impl FnOnce(State<'_>) -> R) -> R {
        let mut state = self.state.try_borrow_mut().expect("the state is used once at a time");
        let state =
            state.as_mut().expect("the state is lent to its endpoint's tasks while they run");
        run(State::of(&mut **state))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "lent once at a time")]
    fn lend__again_before_the_end() {
        let lent = Lent::default();
        let mut state: Box<dyn Any> = Box::new(1_u8);
        lent.lend(&mut state, &mut 2_u16);
        lent.lend(&mut state, &mut 2_u16);
    }

    #[test]
    fn try_with_endpoint__is_nothing_while_in_use() {
        let lent = Lent::default();
        let (mut state, mut endpoint): (Box<dyn Any>, u16) = (Box::new(1_u8), 2);
        lent.lend(&mut state, &mut endpoint);
        // SAFETY: the only type that is lent here.
        let used = unsafe {
            lent.try_with_endpoint::<u16, _>(|number| {
                *number += 1;
                (*number, lent.has_endpoint())
            })
        };
        assert_eq!((used, lent.has_endpoint()), (Some((3, false)), true));
        lent.end(&mut state);
        assert_eq!((state.downcast_ref(), lent.has_endpoint()), (Some(&1_u8), false));
    }
}
