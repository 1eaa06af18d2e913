//! A connected stream socket that never blocks.
//!
//! The kernel reads and writes the bytes here as a device would, without references to them, since
//! the application or the peer may change them at any time.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

/// See the top of this file.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
}

/// A part of memory that the kernel copies from or to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) start: *mut u8,
    pub(super) len: usize,
}

/// What moving bytes came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// So many.
    Some(usize),
    /// None: the socket takes, or has, nothing now.
    Blocked,
    /// The stream has ended, or failed.
    Ended,
}

/// The most parts of one call.
const MOST_SPANS: usize = 4;

impl Socket {
    /// Takes a socket that does not block.
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Sends what the socket takes.
    ///
    /// # Safety
    ///
    /// The spans are mapped memory. They may change while they are read.
    pub(super) unsafe fn send(&self, spans: &[Span]) -> Moved {
        let (mut iov, count) = iovecs(spans);
        let message = message(&mut iov, count);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: header and parts live on this stack for the call; the caller vouches for the
        // memory.
        let moved = unsafe { libc::sendmsg(self.fd.as_raw_fd(), &raw const message, flags) };
        moved_bytes(moved)
    }

    /// Receives what there is, as far as it fits.
    ///
    /// # Safety
    ///
    /// The spans are mapped memory to which there are no references.
    pub(super) unsafe fn receive(&self, spans: &[Span]) -> Moved {
        let (mut iov, count) = iovecs(spans);
        let mut message = message(&mut iov, count);
        // SAFETY: header and parts live on this stack for the call; the caller vouches for the
        // memory.
        let moved =
            unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        match moved_bytes(moved) {
            Moved::Some(0) => Moved::Ended,
            moved => moved,
        }
    }

    /// Ends both directions. What was sent before still arrives, unless the peer goes on sending.
    pub(super) fn shut_down(&self) {
        // It fails where the peer has ended the connection already.
        // SAFETY: the descriptor is open.
        let _ = unsafe { libc::shutdown(self.fd.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn iovecs(spans: &[Span]) -> ([libc::iovec; MOST_SPANS], usize) {
    assert!(spans.len() <= MOST_SPANS, "no call names more");
    let mut iov = [libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    }; MOST_SPANS];
    for (to, span) in iov.iter_mut().zip(spans) {
        to.iov_base = span.start.cast();
        to.iov_len = span.len;
    }
    (iov, spans.len())
}

fn message(iov: &mut [libc::iovec; MOST_SPANS], count: usize) -> libc::msghdr {
    // SAFETY: the C structure holds integers and raw pointers: all zero is a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = iov.as_mut_ptr();
    message.msg_iovlen = count as _;
    message
}

fn moved_bytes(result: isize) -> Moved {
    if let Ok(count) = usize::try_from(result) {
        return Moved::Some(count);
    }
    match io::Error::last_os_error().kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Moved::Blocked,
        _ => Moved::Ended,
    }
}
