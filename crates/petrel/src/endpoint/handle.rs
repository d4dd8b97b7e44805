//! The handler of a method, as the endpoint stores it.

use super::context::Context;
use super::request::{Handled, Request};
use crate::values::State;

/// A stored handler. A boxed closure would get its arguments in a tuple, for which the request is copied once more;
/// a method of a separate trait does not.
pub(crate) trait Handle {
    fn handle(&mut self, state: State<'_>, cx: &mut Context<'_>, request: Request<'_>) -> Handled;
}

impl<F: FnMut(State<'_>, &mut Context<'_>, Request<'_>) -> Handled> Handle for F {
    #[inline]
    fn handle(&mut self, state: State<'_>, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        self(state, cx, request)
    }
}
