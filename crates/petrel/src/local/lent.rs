//! The endpoint and the application's state, lent to tasks while these are polled.

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::mem;
use std::ptr::NonNull;

use crate::values::State;

/// The lent values. Futures stand below the endpoint and do not know its type: a hub is lent one type only.
#[derive(Default)]
pub(super) struct Lent {
    /// The application's state, while tasks are polled.
    state: RefCell<Option<Box<dyn Any>>>,
    /// The endpoint, while tasks are polled and do not use it.
    endpoint: Cell<Option<NonNull<()>>>,
    /// The type of the endpoint, from the first loan on.
    type_id: Cell<Option<TypeId>>,
}

/// Ends a loan, also when a task panics.
struct Loan<'a> {
    lent: &'a Lent,
    state: &'a mut Box<dyn Any>,
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        self.lent.endpoint.set(None);
        *self.state = self.lent.state.take().expect("a state that was lent comes back");
    }
}

impl Lent {
    /// Lends the endpoint, and the state out of its box, while `poll` runs.
    ///
    /// # Panics
    /// While they are lent, and when an endpoint of another type was lent before. Nothing has changed then: a caller
    /// that catches the panic keeps its state, and the loan in progress keeps its own.
    pub(super) fn lend<E: 'static, R>(
        &self,
        state: &mut Box<dyn Any>,
        endpoint: &mut E,
        poll: impl FnOnce() -> R,
    ) -> R {
        let is_free = self.state.try_borrow().is_ok_and(|lent| lent.is_none());
        assert!(is_free && self.endpoint.get().is_none(), "the state is lent once at a time");
        let own = TypeId::of::<E>();
        assert!(self.type_id.get().is_none_or(|of| of == own), "a hub is lent one type only");
        self.type_id.set(Some(own));
        self.state.replace(Some(mem::replace(state, Box::new(()))));
        self.endpoint.set(Some(NonNull::from(endpoint).cast()));
        let _loan = Loan { lent: self, state };
        poll()
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
        debug_assert!(self.type_id.get() == Some(TypeId::of::<E>()), "the type of each loan");
        // SAFETY: of this type by the caller's promise. The loan borrows the endpoint exclusively while the pointer is
        // set, and the pointer is unset during this use.
        Some(run(unsafe { in_use.1.cast::<E>().as_mut() }))
    }

    pub(super) fn with_state<R>(&self, run: impl FnOnce(State<'_>) -> R) -> R {
        let mut state = self.state.try_borrow_mut().expect("the state is used once at a time");
        let state =
            state.as_mut().expect("the state is lent to its endpoint's tasks while they run");
        run(State::of(&mut **state))
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// The message of a panic that `run` ends with.
    fn panic_of(run: impl FnOnce()) -> String {
        let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
        panic.downcast_ref::<&str>().map_or_else(String::new, |text| (*text).to_owned())
    }

    /// The state of the outer loan would else come back to the wrong box, with the wrong type.
    #[test]
    fn lend__again_before_the_end_changes_nothing() {
        let lent = Lent::default();
        let (mut outer, mut inner): (Box<dyn Any>, Box<dyn Any>) =
            (Box::new(1_u8), Box::new(3_u64));
        lent.lend(&mut outer, &mut 2_u16, || {
            let text = panic_of(|| lent.lend(&mut inner, &mut 2_u16, || ()));
            assert!(text.contains("lent once at a time"), "{text}");
            // SAFETY: the lent state has this type.
            assert_eq!(lent.with_state(|state| unsafe { *state.get::<u8>() }), 1);
            assert!(lent.has_endpoint());
        });
        assert_eq!((outer.downcast_ref(), inner.downcast_ref()), (Some(&1_u8), Some(&3_u64)));
    }

    #[test]
    fn lend__of_another_type_changes_nothing() {
        let lent = Lent::default();
        let mut state: Box<dyn Any> = Box::new(1_u8);
        lent.lend(&mut state, &mut 2_u16, || ());
        let text = panic_of(|| lent.lend(&mut state, &mut 2_u32, || ()));
        assert!(text.contains("one type only"), "{text}");
        assert_eq!((state.downcast_ref(), lent.has_endpoint()), (Some(&1_u8), false));
    }

    #[test]
    fn lend__ends_when_a_task_panics() {
        let lent = Lent::default();
        let mut state: Box<dyn Any> = Box::new(1_u8);
        let text = panic_of(|| lent.lend(&mut state, &mut 2_u16, || panic!("of a task")));
        assert_eq!(text, "of a task");
        assert_eq!((state.downcast_ref(), lent.has_endpoint()), (Some(&1_u8), false));
        lent.lend(&mut state, &mut 2_u16, || assert!(lent.has_endpoint()));
    }

    #[test]
    fn try_with_endpoint__is_nothing_while_in_use() {
        let lent = Lent::default();
        let (mut state, mut endpoint): (Box<dyn Any>, u16) = (Box::new(1_u8), 2);
        lent.lend(&mut state, &mut endpoint, || {
            // SAFETY: only this type is lent here.
            let used = unsafe {
                lent.try_with_endpoint::<u16, _>(|number| {
                    *number += 1;
                    (*number, lent.has_endpoint())
                })
            };
            assert_eq!((used, lent.has_endpoint()), (Some((3, false)), true));
        });
        assert_eq!((state.downcast_ref(), lent.has_endpoint()), (Some(&1_u8), false));
    }
}
