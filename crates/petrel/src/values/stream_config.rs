//! The limits of streams.

/// The limits of the [streams](mod@crate::stream) of an endpoint, at both of its sides.
///
/// ```
/// use petrel::endpoint::EndpointConfig;
///
/// let mut config = EndpointConfig::default();
/// config.streams.window_bytes = 1 << 20; // for few streams over a long way
/// # assert!(petrel::Nexus::builder().start()?.endpoint(config).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamConfig {
    /// Bytes of unread messages of one stream, and as many that wait to be sent, each message with 8 bytes more: 256 KiB by
    /// default, up to 2 MiB. A larger message is taken as a whole.
    pub window_bytes: u32,
    /// Streams of one client at one endpoint: 16 384 by default, up to 65 536. The next is refused with RESOURCE_EXHAUSTED.
    pub streams_max: u32,
    /// Bytes of unread messages of all streams of one client at one endpoint: 64 MiB by default. A stream that needs more ends with
    /// RESOURCE_EXHAUSTED. All clients of the endpoint have four times as much; beyond, the client with the most unread messages loses all its
    /// streams, with the same status.
    pub held_bytes_max: u32,
}

/// The window of a stream before its reader grants more, and the least window.
const WINDOW_BYTES_MIN: u32 = 256 << 10;
const WINDOW_BYTES_MAX: u32 = 2 << 20;
const STREAMS_MAX: u32 = 65_536;

impl Default for StreamConfig {
    fn default() -> Self {
        Self { window_bytes: WINDOW_BYTES_MIN, streams_max: 16_384, held_bytes_max: 64 << 20 }
    }
}

impl StreamConfig {
    /// Checks the rules of the fields.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if !(WINDOW_BYTES_MIN..=WINDOW_BYTES_MAX).contains(&self.window_bytes) {
            return Err("a stream has a window of 256 KiB to 2 MiB");
        }
        if !(1..=STREAMS_MAX).contains(&self.streams_max) {
            return Err("a client has 1 to 65 536 streams");
        }
        if self.held_bytes_max < self.window_bytes {
            return Err("the streams' memory has room for one window");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check__of_values_beyond_the_limits() {
        let config = StreamConfig::default();
        assert_eq!(config.check(), Ok(()));
        for wrong in [
            StreamConfig { window_bytes: WINDOW_BYTES_MIN - 1, ..config },
            StreamConfig { window_bytes: WINDOW_BYTES_MAX + 1, ..config },
            StreamConfig { streams_max: 0, ..config },
            StreamConfig { streams_max: STREAMS_MAX + 1, ..config },
            StreamConfig { held_bytes_max: WINDOW_BYTES_MIN - 1, ..config },
        ] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
    }
}
