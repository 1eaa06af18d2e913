use std::{io, time::Duration};

use super::Stream;

/// Options of a socket.
impl Stream {
    /// Returns the time to live of this stream's packets: how many hops they may take.
    ///
    /// # Errors
    ///
    /// * [`Unsupported`](io::ErrorKind::Unsupported) over RDMA: the route has the limit of hops,
    ///   and no call reads it.
    /// * [`NotConnected`](io::ErrorKind::NotConnected) when the connection has ended.
    pub fn ttl(&self) -> io::Result<u32> {
        self.shared.endpoint.ttl()
    }

    /// Sets the time to live of this stream's packets, from 1 to 255 hops. Default: that of the
    /// system, most often 64.
    ///
    /// # Errors
    ///
    /// * [`InvalidInput`](io::ErrorKind::InvalidInput) for other numbers.
    /// * [`Unsupported`](io::ErrorKind::Unsupported) over RDMA: the limit of hops is set when the
    ///   route is resolved, and no call changes it. The stream goes on.
    /// * [`NotConnected`](io::ErrorKind::NotConnected) when the connection has ended.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.shared.endpoint.set_ttl(ttl)
    }

    /// Returns the duration that [`set_linger`](Self::set_linger) has set.
    ///
    /// # Errors
    ///
    /// None.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        Ok(self.shared.endpoint.linger())
    }

    /// Sets how the stream ends when its last handle is dropped. Default: `None`.
    ///
    /// * `None`: the peer reads the bytes that were written before, and then the end. The drop does
    ///   not wait for that.
    /// * Zero: the drop resets the connection. Bytes that have not arrived are lost, and a read of
    ///   the peer fails with [`ConnectionReset`](io::ErrorKind::ConnectionReset).
    /// * Any other duration: as `None`. A drop never waits.
    ///
    /// # Errors
    ///
    /// None.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.shared.endpoint.set_linger(linger);
        Ok(())
    }

    /// Sets the value that [`nodelay`](Self::nodelay) returns. It has no other effect, because a
    /// stream never delays a write.
    ///
    /// # Errors
    ///
    /// None.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.shared.endpoint.set_nodelay(nodelay);
        Ok(())
    }

    /// Returns the value that [`set_nodelay`](Self::set_nodelay) has set. Default: `false`.
    ///
    /// # Errors
    ///
    /// None.
    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(self.shared.endpoint.nodelay())
    }
}
