use std::{io, time::Duration};

/// The configuration of a stream. The defaults are the same as in librdmacm.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The maximum number of sent bytes that the peer has not acknowledged. Bytes that are sent
    /// inline do not count. Default: 128 KiB.
    pub send_buffer: usize,
    /// The maximum number of received bytes that the program has not read yet.
    /// Range: 2 bytes to 2 GiB. Default: 128 KiB.
    pub receive_buffer: usize,
    /// The maximum number of the peer's writes that have arrived, but that the program has not read
    /// completely. Range: 2 to 32767. Default: 384.
    pub receive_queue: u16,
    /// The maximum number of this side's outstanding writes. The value must be at least 1.
    /// Default: 384.
    pub send_queue: u16,
    /// The maximum length in bytes of a write that is sent inline. Default: 64.
    ///
    /// If the device supports a smaller maximum, the device's maximum applies.
    pub inline: u32,
    /// The time limit for connecting. Default: 10 s.
    pub connect_timeout: Duration,
    /// The maximum time that a close waits for the written bytes to arrive. Default: 10 s.
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
    /// Returns an error of the kind `InvalidInput` if a value is out of range.
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
