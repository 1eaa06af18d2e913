use std::{
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Poll, ready},
    time::Instant,
};

use crate::{
    endpoint::Endpoint,
    error::Error,
    link::{Deadline, Message},
};

/// The maximum number of empty messages that a call skips if it has no deadline.
const MAX_EMPTY: u32 = 64;

/// The reading side of a stream, with the message whose bytes are read next.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// The message with unread bytes; `None` if there is none.
    message: Option<Message>,
    /// The number of bytes of `message` that have been read.
    read: usize,
    /// Whether the peer has finished sending.
    finished: bool,
    /// True if the last call of [`announce`](Self::announce) found unread bytes or the end of the
    /// stream, and therefore keeps the fd readable.
    announced: bool,
}

impl Reading {
    /// Returns the unread bytes of the current message.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.message
            .as_ref()
            .map_or(&[], |message| &message[self.read..])
    }

    /// Returns `Ok` when there are unread bytes, the stream has ended, or `stopped` is set. Waits
    /// for one of these conditions until the deadline, and then fails with [`Error::TimedOut`].
    /// Without a deadline, does not wait, and fails with this error if none of the conditions
    /// applies.
    pub(crate) fn fill(
        &mut self,
        endpoint: &Endpoint,
        stopped: &AtomicBool,
        deadline: Option<&Deadline>,
    ) -> Result<(), Error> {
        let mut empty = 0;
        while self.message.is_none() && !self.finished {
            let received = match deadline {
                Some(deadline) => endpoint.recv_unless(stopped, deadline),
                None => endpoint.try_recv(),
            };
            match received {
                Ok(Some(message)) if message.is_empty() => {
                    // The peer could send an endless series of empty messages, so this loop has a
                    // limit.
                    empty += 1;
                    let in_time = match deadline {
                        Some(deadline) => !deadline.is_past(Instant::now()),
                        None => empty < MAX_EMPTY,
                    };
                    if !in_time {
                        return Err(Error::TimedOut);
                    }
                }
                Ok(Some(message)) => {
                    self.message = Some(message);
                    self.read = 0;
                }
                Ok(None) if stopped.load(Ordering::Acquire) => break,
                Ok(None) => return Err(Error::TimedOut),
                Err(Error::PeerFinished) => self.finished = true,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Works like [`fill`](Self::fill), for a task.
    pub(crate) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        endpoint: &Endpoint,
        stopped: &AtomicBool,
    ) -> Poll<Result<(), Error>> {
        let mut empty = 0;
        while self.message.is_none() && !self.finished {
            match ready!(endpoint.poll_recv_unless(cx, stopped)) {
                Ok(Some(message)) if message.is_empty() => {
                    empty += 1;
                    if empty == MAX_EMPTY {
                        // The task yields to other tasks, and the runtime polls it again.
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
                Ok(Some(message)) => {
                    self.message = Some(message);
                    self.read = 0;
                }
                Ok(None) => break,
                Err(Error::PeerFinished) => self.finished = true,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Copies bytes that have arrived, but does not consume them. Returns the number of copied
    /// bytes. The caller must first call [`fill`](Self::fill).
    pub(crate) fn peek(&self, endpoint: &Endpoint, to: &mut [u8]) -> usize {
        let bytes = self.bytes();
        let here = bytes.len().min(to.len());
        let (to, rest) = to.split_at_mut(here);
        to.copy_from_slice(&bytes[..here]);
        if here == 0 || rest.is_empty() {
            return here;
        }
        here + endpoint.peek_bytes(rest)
    }

    /// Copies and consumes bytes that have arrived. Returns the number of bytes.
    pub(crate) fn read(&mut self, endpoint: &Endpoint, to: &mut [u8]) -> usize {
        let mut read = 0;
        loop {
            let bytes = self.bytes();
            let count = bytes.len().min(to.len() - read);
            to[read..read + count].copy_from_slice(&bytes[..count]);
            self.consume(count);
            read += count;
            if read == to.len() || !self.next_message(endpoint) {
                return read;
            }
        }
    }

    /// If all bytes of the current message have been read, replaces it with the next message, if
    /// one has arrived. Returns true if there are unread bytes afterwards.
    pub(crate) fn next_message(&mut self, endpoint: &Endpoint) -> bool {
        if self.message.is_none() {
            self.message = endpoint.take_bytes();
            self.read = 0;
        }
        self.message.is_some()
    }

    /// Marks the next `count` bytes as read.
    pub(crate) fn consume(&mut self, count: usize) {
        self.read += count.min(self.bytes().len());
        if self.bytes().is_empty() {
            self.message = None;
        }
    }

    /// Keeps the fd readable while this struct contains unread bytes or has reached the end of the
    /// stream. The endpoint has already delivered these bytes or the end, so it no longer keeps the
    /// fd readable for them.
    pub(crate) fn announce(&mut self, endpoint: &Endpoint) {
        let readable = self.message.is_some() || self.finished;
        if readable != self.announced {
            self.announced = readable;
            endpoint.keep_readable(readable);
        }
    }
}
