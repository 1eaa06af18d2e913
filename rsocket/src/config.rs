use std::{io, time::Duration};

/// The configuration of a stream. The defaults are those of librdmacm.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The number of bytes that may be sent and not acknowledged. Default: 128 KiB.
    pub send_buffer: usize,
    /// The number of received, unread bytes to buffer: 2 bytes to 2 GiB. Default: 128 KiB.
    pub receive_buffer: usize,
    /// The number of writes of the peer that may be received and unread: 2 to 32767. Default: 384.
    pub receive_queue: u16,
    /// The maximum number of outstanding writes: at least 1. Default: 384.
    pub send_queue: u16,
    /// The maximum length of a write that is sent inline, in bytes. Default: 64.
    ///
    /// The device may support less.
    pub inline: u32,
    /// The timeout for connecting. Default: 10 s.
    pub connect_timeout: Duration,
    /// The time for which closing waits until written bytes have arrived. Default: 10 s.
    pub linger: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            send_buffer: 128 << 10,
            receive_buffer: 128 << 10,
            receive_queue: 384,
            send_queue: 384,
            inline: 64,
            connect_timeout: Duration::from_secs(10),
            linger: Duration::from_secs(10),
        }
    }
}

impl Config {
    /// Refuses a configuration with an invalid value.
    pub(super) fn check(&self) -> io::Result<()> {
        let wrong = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        if self.send_buffer == 0 {
            return wrong("send_buffer must not be 0");
        }
        if !(2..=2 << 30).contains(&self.receive_buffer) {
            return wrong("receive_buffer must be from 2 bytes to 2 GiB");
        }
        if !(2..=32767).contains(&self.receive_queue) {
            return wrong("receive_queue must be from 2 to 32767");
        }
        if self.send_queue == 0 {
            return wrong("send_queue must not be 0");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_values_are_refused() {
        assert!(Config::default().check().is_ok());
        let changes: [fn(&mut Config); 6] = [
            |config| config.send_buffer = 0,
            |config| config.receive_buffer = 1,
            |config| config.receive_buffer = (2 << 30) + 1,
            |config| config.receive_queue = 1,
            |config| config.receive_queue = 32768,
            |config| config.send_queue = 0,
        ];
        for change in changes {
            let mut config = Config::default();
            change(&mut config);
            let error = config.check().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{config:?}");
        }
    }
}
