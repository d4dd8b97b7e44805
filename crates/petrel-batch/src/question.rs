//! The operator `?` in a batch, where `return` ends a lane and not the function.
//!
//! The standard library's trait for `?` is not stable, so that two traits stand in. All types with `?` on stable Rust are covered.

use core::convert::Infallible;
use core::ops::ControlFlow;
use core::task::Poll;

/// A type that has the operator `?`.
pub trait Question {
    /// The value of the expression if the function goes on.
    type Output;
    /// The part that the function returns otherwise.
    type Residual;

    /// Returns the value, or the part that ends the function.
    fn branch(self) -> ControlFlow<Self::Residual, Self::Output>;
}

/// A function's result that can be made of the residual of a `?`.
pub trait FromResidual<R> {
    /// Returns the function's result.
    fn from_residual(residual: R) -> Self;
}

/// Returns the value of an expression with `?`, or the part that ends the function.
#[inline(always)]
pub fn branch<Q: Question>(value: Q) -> ControlFlow<Q::Residual, Q::Output> {
    value.branch()
}

impl<T> Question for Option<T> {
    type Output = T;
    type Residual = Option<Infallible>;

    #[inline(always)]
    fn branch(self) -> ControlFlow<Option<Infallible>, T> {
        self.map_or(ControlFlow::Break(None), ControlFlow::Continue)
    }
}

impl<T> FromResidual<Option<Infallible>> for Option<T> {
    #[inline(always)]
    fn from_residual(_: Option<Infallible>) -> Self {
        None
    }
}

impl<T, E> Question for Result<T, E> {
    type Output = T;
    type Residual = Result<Infallible, E>;

    #[inline(always)]
    fn branch(self) -> ControlFlow<Result<Infallible, E>, T> {
        match self {
            Ok(value) => ControlFlow::Continue(value),
            Err(error) => ControlFlow::Break(Err(error)),
        }
    }
}

/// The error that a residual holds.
fn error_of<E>(residual: Result<Infallible, E>) -> E {
    let Err(error) = residual;
    error
}

impl<T, E, F: From<E>> FromResidual<Result<Infallible, E>> for Result<T, F> {
    #[inline(always)]
    fn from_residual(residual: Result<Infallible, E>) -> Self {
        Err(F::from(error_of(residual)))
    }
}

impl<T, E, F: From<E>> FromResidual<Result<Infallible, E>> for Poll<Result<T, F>> {
    #[inline(always)]
    fn from_residual(residual: Result<Infallible, E>) -> Self {
        Poll::Ready(Err(F::from(error_of(residual))))
    }
}

impl<T, E, F: From<E>> FromResidual<Result<Infallible, E>> for Poll<Option<Result<T, F>>> {
    #[inline(always)]
    fn from_residual(residual: Result<Infallible, E>) -> Self {
        Poll::Ready(Some(Err(F::from(error_of(residual)))))
    }
}

impl<B, C> Question for ControlFlow<B, C> {
    type Output = C;
    type Residual = ControlFlow<B, Infallible>;

    #[inline(always)]
    fn branch(self) -> ControlFlow<ControlFlow<B, Infallible>, C> {
        match self {
            ControlFlow::Continue(value) => ControlFlow::Continue(value),
            ControlFlow::Break(value) => ControlFlow::Break(ControlFlow::Break(value)),
        }
    }
}

impl<B, C> FromResidual<ControlFlow<B, Infallible>> for ControlFlow<B, C> {
    #[inline(always)]
    fn from_residual(residual: ControlFlow<B, Infallible>) -> Self {
        let ControlFlow::Break(value) = residual;
        ControlFlow::Break(value)
    }
}

impl<T, E> Question for Poll<Result<T, E>> {
    type Output = Poll<T>;
    type Residual = Result<Infallible, E>;

    #[inline(always)]
    fn branch(self) -> ControlFlow<Result<Infallible, E>, Poll<T>> {
        match self {
            Poll::Ready(Ok(value)) => ControlFlow::Continue(Poll::Ready(value)),
            Poll::Ready(Err(error)) => ControlFlow::Break(Err(error)),
            Poll::Pending => ControlFlow::Continue(Poll::Pending),
        }
    }
}

impl<T, E> Question for Poll<Option<Result<T, E>>> {
    type Output = Poll<Option<T>>;
    type Residual = Result<Infallible, E>;

    #[inline(always)]
    fn branch(self) -> ControlFlow<Result<Infallible, E>, Poll<Option<T>>> {
        match self {
            Poll::Ready(Some(Ok(value))) => ControlFlow::Continue(Poll::Ready(Some(value))),
            Poll::Ready(Some(Err(error))) => ControlFlow::Break(Err(error)),
            Poll::Ready(None) => ControlFlow::Continue(Poll::Ready(None)),
            Poll::Pending => ControlFlow::Continue(Poll::Pending),
        }
    }
}
