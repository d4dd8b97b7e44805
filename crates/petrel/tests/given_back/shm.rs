//! Two endpoints over shared memory.
