use std::{io, time::Duration};

/// The configuration of a stream. The default sizes of the buffers and queues are the same as in
/// Valkey.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The length in bytes of the buffer to which the peer writes, 1 to `u32::MAX`. Default: 1 MiB.
    pub receive_buffer: u32,
    /// The maximum number of sent bytes that the peer has not acknowledged, at least 1. Default: 1
    /// MiB.
    pub send_buffer: usize,
    /// The number of posted receives, 16 to 32767. Default: 1024.
    ///
    /// Each write and each command of the peer consumes one receive. A stream reposts consumed
    /// receives while the program calls the stream's methods, and once in each
    /// [`keepalive`](Self::keepalive) interval. The protocol does not limit the number of messages
    /// that the peer sends. If the peer sends while no receive is posted, the peer's device
    /// retries. If the device gives up, the connection fails.
    pub receive_queue: u16,
    /// The maximum number of this side's outstanding writes, 1 to 32767. Default: 512.
    pub send_queue: u16,
    /// The time limit for connecting, or for the first commands of an accepted client. Default:
    /// 10 s.
    pub connect_timeout: Duration,
    /// The interval at which a thread of the stream sends the command Keepalive. Default: 3 s, the
    /// interval of Valkey's servers.
    ///
    /// `None` disables keepalives. Then only a write detects the loss of the peer. After the first
    /// commands, the stream handles the peer's commands only while the program calls the stream's
    /// methods.
    pub keepalive: Option<Duration>,
    /// The maximum time that a close waits for the written bytes to arrive. Default: 10 s.
    pub linger: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            receive_buffer: 1 << 20,
            send_buffer: 1 << 20,
            receive_queue: 1024,
            send_queue: 512,
            connect_timeout: Duration::from_secs(10),
            keepalive: Some(Duration::from_secs(3)),
            linger: Duration::from_secs(10),
        }
    }
}

impl Config {
    /// Returns `InvalidInput` if a value is out of range.
    pub(crate) fn check(&self) -> io::Result<()> {
        let wrong = |text: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        if self.receive_buffer == 0 || self.send_buffer == 0 {
            return wrong("receive_buffer and send_buffer must not be 0");
        }
        if !(16..=32767).contains(&self.receive_queue) {
            return wrong("receive_queue must be from 16 to 32767");
        }
        if !(1..=32767).contains(&self.send_queue) {
            return wrong("send_queue must be from 1 to 32767");
        }
        if self.keepalive.is_some_and(|interval| interval.is_zero()) {
            return wrong("keepalive must not be 0");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_values_are_refused() {
        assert!(Config::default().check().is_ok());
        let changes: [fn(&mut Config); 6] = [
            |config| config.receive_buffer = 0,
            |config| config.send_buffer = 0,
            |config| config.receive_queue = 15,
            |config| config.receive_queue = 32768,
            |config| config.send_queue = 0,
            |config| config.keepalive = Some(Duration::ZERO),
        ];
        for change in changes {
            let mut config = Config::default();
            change(&mut config);
            let error = config.check().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{config:?}");
        }
    }
}
