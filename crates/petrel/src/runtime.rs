//! The executor of the application, for code of the application on threads of the library.

/// The tokio runtime around the start of a server or a pool of workers, if any.
#[derive(Clone, Debug)]
pub(crate) struct Runtime {
    #[cfg(feature = "tokio")]
    handle: Option<tokio::runtime::Handle>,
}

impl Runtime {
    pub(crate) fn current() -> Self {
        Self {
            #[cfg(feature = "tokio")]
            handle: tokio::runtime::Handle::try_current().ok(),
        }
    }

    /// Enters the runtime's context on this thread, until the returned value is dropped.
    #[cfg(feature = "tokio")]
    pub(crate) fn enter(&self) -> Option<tokio::runtime::EnterGuard<'_>> {
        self.handle.as_ref().map(tokio::runtime::Handle::enter)
    }

    /// There is no runtime to enter.
    #[cfg(not(feature = "tokio"))]
    pub(crate) fn enter(&self) {}
}
