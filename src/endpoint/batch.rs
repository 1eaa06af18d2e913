use std::io::IoSlice;

use super::Endpoint;
use crate::{
    error::{Error, TrySendError},
    link::Deadline,
};

/// Batches of messages.
impl Endpoint {
    /// Sends these messages, one after the other, waiting while the peer's window is full, and
    /// returns how many were sent.
    ///
    /// Each arrives as a message of its own, as if it had been sent by [`send`](Self::send); what
    /// is saved is the frames: as many messages as fit the peer's eager size and its window, up to
    /// 64, travel together, and a frame costs about the same whatever is in it. The bytes are
    /// copied. A message takes its place in the peer's window also where it travels with others;
    /// its receive buffer is free when the last of these has been dropped.
    ///
    /// All of them are sent, unless an error comes after the first: then the next call returns it.
    /// An empty batch is no message.
    ///
    /// # Errors
    ///
    /// Those of [`send`](Self::send), for the first message: nothing was sent.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::io::IoSlice;
    ///
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let endpoint = rdmsg::Endpoint::connect("10.8.0.1:7471")?;
    /// let quotes = ["RDMA 17.2", "TCP 3.1", "UDP 2.9"];
    /// let batch = quotes.map(|quote| IoSlice::new(quote.as_bytes()));
    /// assert_eq!(endpoint.send_batch(&batch)?, quotes.len());
    /// # Ok(())
    /// # }
    /// ```
    pub fn send_batch(&self, messages: &[IoSlice<'_>]) -> Result<usize, Error> {
        let never = Deadline::never();
        let mut sent = 0;
        while let rest @ [_, ..] = &messages[sent..] {
            match self.wait_for_room(&never, || self.send_some(rest)) {
                Ok(some) => sent += some,
                Err(error) if sent == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(sent)
    }

    /// As many as there is room for.
    pub(super) fn send_some(&self, messages: &[IoSlice<'_>]) -> Result<usize, TrySendError> {
        let mut sent = 0;
        while let rest @ [_, ..] = &messages[sent..] {
            match self.inner.link.try_send_some(rest) {
                Ok(some) => sent += some,
                Err(error) if sent == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(sent)
    }
}
