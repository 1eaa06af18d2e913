use std::{
    io,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// How long a call may wait; by default for ever.
#[derive(Debug, Default)]
pub(super) struct Timeout {
    /// 0: for ever. More than 500 years are as good as 500.
    nanos: AtomicU64,
}

impl Timeout {
    pub(super) fn get(&self) -> Option<Duration> {
        match self.nanos.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }

    /// Sets it. A duration of zero is refused, as by [`std::net::TcpStream`].
    pub(super) fn set(&self, timeout: Option<Duration>) -> io::Result<()> {
        let nanos = match timeout {
            None => 0,
            Some(Duration::ZERO) => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "a timeout of zero is none; use set_nonblocking to never wait",
                ));
            }
            Some(timeout) => u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX),
        };
        self.nanos.store(nanos, Ordering::Relaxed);
        Ok(())
    }
}
