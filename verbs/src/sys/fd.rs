//! Operations on file descriptors that belong to C objects.

use std::{
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use rdma_status::OsError;
use rdmsg_os::{failed, millis};

/// Makes `fd` non-blocking.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<(), OsError> {
    let error = failed("fcntl");
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL).map_err(error)?);
    if !flags.contains(OFlag::O_NONBLOCK) {
        fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).map_err(error)?;
    }
    Ok(())
}

/// Calls `read` until it returns a value. Between the calls, waits until `fd` is readable, for at
/// most `timeout` in total.
///
/// Returns `None` if `read` returned no value in time.
///
/// `read` must not block. This function calls `read` at least once. Before this function returns
/// `None`, it calls `read` once more after the timeout has expired.
pub(crate) fn wait_readable<T>(
    fd: BorrowedFd<'_>,
    timeout: Duration,
    mut read: impl FnMut() -> Result<Option<T>, OsError>,
) -> Result<Option<T>, OsError> {
    // If the sum exceeds the range of `Instant`, there is no deadline.
    let deadline = Instant::now().checked_add(timeout);
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if let Some(value) = read()? {
            return Ok(Some(value));
        }
        if left == Some(Duration::ZERO) {
            return Ok(None);
        }
        match poll(
            &mut [PollFd::new(fd, PollFlags::POLLIN)],
            // The timeout is rounded up to milliseconds. If it were rounded down, the loop would
            // run without sleeping during the final millisecond.
            left.map_or(PollTimeout::NONE, |left| {
                PollTimeout::try_from(millis(left)).unwrap_or(PollTimeout::MAX)
            }),
        ) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(failed("poll")(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::{fd::AsFd, unix::net::UnixStream},
        thread,
    };

    use super::*;

    /// Returns a function that reads one byte without blocking.
    fn reader(mut stream: &UnixStream) -> impl FnMut() -> Result<Option<u8>, OsError> {
        move || {
            let mut byte = [0];
            match stream.read(&mut byte) {
                Ok(_) => Ok(Some(byte[0])),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[test]
    fn present_item_is_read_without_waiting() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        set_nonblocking(ours.as_fd()).unwrap();
        assert_eq!(
            wait_readable(ours.as_fd(), Duration::ZERO, reader(&ours)),
            Ok(None)
        );
        theirs.write_all(&[7]).unwrap();
        assert_eq!(
            wait_readable(ours.as_fd(), Duration::ZERO, reader(&ours)),
            Ok(Some(7))
        );
    }

    #[test]
    fn later_item_wakes_the_waiting_thread() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        set_nonblocking(ours.as_fd()).unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| wait_readable(ours.as_fd(), Duration::MAX, reader(&ours)));
            theirs.write_all(&[9]).unwrap();
            assert_eq!(waiter.join().unwrap(), Ok(Some(9)));
        });
    }

    #[test]
    fn wait_ends_at_its_timeout() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        set_nonblocking(ours.as_fd()).unwrap();
        let start = Instant::now();
        let timeout = Duration::from_millis(20);
        assert_eq!(
            wait_readable(ours.as_fd(), timeout, reader(&ours)),
            Ok(None)
        );
        assert!(start.elapsed() >= timeout);
    }
}
