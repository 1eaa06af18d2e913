use std::{
    future::{pending, poll_fn},
    io,
    pin::{Pin, pin},
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use rdmsg::{
    Completion, Endpoint, Error,
    tokio::{OwnedReadHalf, OwnedWriteHalf},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest},
    net::tcp::{ReadHalf, WriteHalf},
    select,
    time::{Instant, timeout},
};

use super::{
    counters::Flow,
    options::EAGER_SIZE_OVER_TCP,
    session::{Plain, Rdmsg, Session},
};

/// The size in bytes of the buffer between a connection's plain end and its stream. After a read
/// that does not fill the buffer, the bridge frees the buffer. When the plain end has more bytes to
/// read, the bridge allocates a new buffer.
///
/// A full buffer and the headers of the frame, of TCP and of IP together fit into 64 KiB. This is
/// the maximum length of a segment on loopback, and of a segment that the kernel passes to a
/// network card. A larger buffer would need a second segment.
const PIECE: usize = 60 * 1024;

// Each buffer must fit into one eager frame over TCP.
const _: () = assert!(PIECE <= EAGER_SIZE_OVER_TCP as usize);

/// The interval at which a blocked write to the plain end checks whether the stream has failed.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// After an end has failed, the delivery of the remaining bytes stops if neither direction makes
/// progress for this time.
const STALL_LIMIT: Duration = Duration::from_secs(2);

/// The maximum time for delivering the remaining bytes to one end after the other end has failed.
const DELIVERY_LIMIT: Duration = Duration::from_secs(30);

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Plain,
    Stream,
}

/// The first failure of either end, and the progress of both directions.
#[derive(Debug, Default)]
struct Progress {
    failure: OnceLock<(End, io::Error)>,
    /// The number of successful writes to both ends.
    writes: AtomicU64,
}

impl Progress {
    /// Records the failure of an end. Ignores all failures after the first.
    fn fail(&self, end: End, error: io::Error) {
        let _ = self.failure.set((end, error));
    }

    fn failed_end(&self) -> Option<End> {
        self.failure.get().map(|(end, _)| *end)
    }

    /// Returns true if a reset of the plain socket makes later reads return an end of file that the
    /// peer did not send. If the peer resets the connection after it has sent its end of file, the
    /// kernel reports `BrokenPipe`, and the end of file is genuine. After any other reset, the
    /// kernel reports `ConnectionReset`.
    fn hides_end_of_plain(&self) -> bool {
        matches!(self.failure.get(), Some((End::Plain, error))
            if error.kind() != io::ErrorKind::BrokenPipe)
    }

    /// Waits for a failure. The task must poll this future after the futures of both directions,
    /// because these futures record a failure without waking the task.
    async fn failed(&self) -> End {
        poll_fn(|_| self.failed_end().map_or(Poll::Pending, Poll::Ready)).await
    }

    /// Waits until `delivery` completes. Stops waiting after `DELIVERY_LIMIT`, or if neither
    /// direction makes progress for `STALL_LIMIT`.
    async fn limit(&self, delivery: impl Future<Output = ()>) {
        let mut delivery = pin!(delivery);
        let end = Instant::now() + DELIVERY_LIMIT;
        while Instant::now() < end {
            let before = self.writes.load(Ordering::Relaxed);
            let ended = timeout(STALL_LIMIT, &mut delivery).await;
            if ended.is_ok() || self.writes.load(Ordering::Relaxed) == before {
                return;
            }
        }
    }
}

/// Forwards bytes in both directions until both directions have ended.
///
/// Each direction writes all bytes of a read before its next read, so a slow reader blocks the
/// writer. One task forwards both directions, so no bytes move between threads. The task detects a
/// failure of either end, even while it does not read from that end.
///
/// If an end fails, this function first delivers the bytes that arrived from that end before the
/// failure. This matters if a service sends an answer and resets the connection before it has read
/// the whole request. The function discards the bytes that the failed end cannot accept, and then
/// returns the error.
pub(super) async fn carry(session: &mut Session) -> io::Result<()> {
    let progress = Progress::default();
    carry_both(session, &progress).await;
    match progress.failure.into_inner() {
        Some((_, error)) => Err(error),
        None => Ok(()),
    }
}

async fn carry_both(session: &mut Session, progress: &Progress) {
    let Session { plain, rdmsg, flow } = session;
    let Plain { socket, .. } = plain;
    let Rdmsg { read, write, .. } = rdmsg;
    let endpoint = read.endpoint().clone();
    let (plain_read, plain_write) = socket.split();
    let mut there = pin!(from_plain(plain_read, write, flow, progress));
    let mut back = pin!(to_plain(read, plain_write, flow, progress));
    let (mut there_ended, mut back_ended, mut plain_read) = (false, None, None);
    let failed = loop {
        select! {
            biased;
            ended = &mut there, if !there_ended => {
                there_ended = true;
                plain_read = ended;
            }
            finished = &mut back, if back_ended.is_none() => back_ended = Some(finished),
            failed = progress.failed() => break failed,
            error = failure_of_plain(plain_read.as_ref()) => progress.fail(End::Plain, error),
            error = failure_of_stream(&endpoint), if back_ended.is_some() => {
                progress.fail(End::Stream, error);
            }
        }
        if there_ended && back_ended.is_some() && progress.failed_end().is_none() {
            return;
        }
    };
    let mut there = pin!(async {
        if !there_ended {
            there.await;
        }
    });
    let mut back = pin!(async {
        match back_ended {
            Some(finished) => finished,
            None => back.await,
        }
    });
    match failed {
        End::Plain => {
            let delivery = async {
                progress.limit(there).await;
                // The stream is aborted later, and an abort discards bytes that have not arrived at
                // the peer. Therefore wait until all bytes have arrived. The wait can be long if
                // the program behind the peer reads slowly.
                let _ = endpoint.flushed().await;
            };
            let discard = async {
                back.await;
                pending().await
            };
            select! {
                _ = timeout(DELIVERY_LIMIT, delivery) => {}
                () = discard => {}
            }
        }
        End::Stream => {
            let delivery = async {
                select! {
                    biased;
                    finished = &mut back => if finished {
                        // Wait until the program at the plain end has read the delivered bytes and
                        // closed its socket. A reset before that could discard these bytes.
                        there.await;
                    },
                    () = &mut there => {
                        back.await;
                    }
                }
            };
            progress.limit(delivery).await;
        }
    }
}

/// Forwards bytes and then the end of file from the plain socket to the stream. If the stream
/// fails, discards the bytes. At the end of file, returns the read half of the socket, with which
/// the caller can still detect a failure of the socket. Returns `None` after a failure of the
/// socket.
async fn from_plain<'a>(
    mut plain: ReadHalf<'a>,
    stream: &mut OwnedWriteHalf,
    flow: &Flow,
    progress: &Progress,
) -> Option<ReadHalf<'a>> {
    let mut piece = Vec::new();
    let mut discards = false;
    loop {
        if piece.capacity() == 0 {
            // Allocate the buffer only when there are bytes to read, because thousands of
            // connections may be idle.
            if let Err(error) = plain.readable().await {
                progress.fail(End::Plain, error);
                return None;
            }
            piece.reserve_exact(PIECE);
        }
        piece.clear();
        let len = match plain.read_buf(&mut piece).await {
            Ok(0) if progress.hides_end_of_plain() => return None,
            Ok(0) => {
                if let Err(error) = stream.shutdown().await {
                    progress.fail(End::Stream, error);
                }
                return Some(plain);
            }
            Ok(len) => len,
            Err(error) => {
                progress.fail(End::Plain, error);
                return None;
            }
        };
        let mut rest = &*piece;
        while !rest.is_empty() && !discards {
            let written = match write_now(stream, rest).await {
                Some(written) => written,
                None => write_to_stream(stream, rest, &plain, progress).await,
            };
            match written {
                Ok(written) => {
                    flow.count_from_plain(written);
                    progress.writes.fetch_add(1, Ordering::Relaxed);
                    rest = &rest[written..];
                }
                Err(error) => {
                    progress.fail(End::Stream, error);
                    discards = true;
                }
            }
        }
        if len < PIECE {
            piece = Vec::new();
        }
    }
}

/// Forwards bytes and then the end of file from the stream to the plain socket. Writes directly
/// from the stream's receive buffers. If the socket fails, discards the bytes. Returns true if the
/// socket accepted the end of file.
async fn to_plain(
    stream: &mut OwnedReadHalf,
    mut plain: WriteHalf<'_>,
    flow: &Flow,
    progress: &Progress,
) -> bool {
    let endpoint = stream.endpoint().clone();
    let mut discards = false;
    loop {
        let bytes = match stream.fill_buf().await {
            Ok(bytes) => bytes,
            Err(error) => {
                progress.fail(End::Stream, error);
                return false;
            }
        };
        if bytes.is_empty() {
            let ended = plain.shutdown().await;
            return match ended {
                Ok(()) => true,
                Err(error) => {
                    progress.fail(End::Plain, error);
                    false
                }
            };
        }
        if discards {
            let len = bytes.len();
            stream.consume(len);
            continue;
        }
        let written = match write_now(&mut plain, bytes).await {
            Some(written) => written,
            None => write_to_plain(&mut plain, bytes, &endpoint, progress).await,
        };
        match written {
            Ok(written @ 1..) => {
                flow.count_to_plain(written);
                progress.writes.fetch_add(1, Ordering::Relaxed);
                stream.consume(written);
            }
            failed => {
                let error = failed
                    .err()
                    .unwrap_or_else(|| io::ErrorKind::WriteZero.into());
                progress.fail(End::Plain, error);
                discards = true;
            }
        }
    }
}

/// Writes without waiting, possibly only some of the bytes. Returns `None` if the write would wait.
async fn write_now(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Option<io::Result<usize>> {
    poll_fn(|cx| {
        Poll::Ready(match Pin::new(&mut *to).poll_write(cx, bytes) {
            Poll::Ready(written) => Some(written),
            Poll::Pending => None,
        })
    })
    .await
}

/// Writes bytes to the stream. While the write waits, the task does not read from the plain socket,
/// so no read can detect a failure of the socket. Therefore this function also watches the socket,
/// and records a failure.
async fn write_to_stream(
    stream: &mut OwnedWriteHalf,
    bytes: &[u8],
    plain: &ReadHalf<'_>,
    progress: &Progress,
) -> io::Result<usize> {
    if progress.failed_end().is_none() {
        select! {
            written = stream.write(bytes) => return written,
            error = failure_of_plain(Some(plain)) => progress.fail(End::Plain, error),
        }
    }
    stream.write(bytes).await
}

/// Writes bytes to the plain end. While the write waits, the task does not read from the stream, so
/// no read can detect a failure of the stream. Therefore this function also checks the stream every
/// `CHECK_INTERVAL`, and records a failure.
async fn write_to_plain(
    plain: &mut WriteHalf<'_>,
    bytes: &[u8],
    endpoint: &Endpoint,
    progress: &Progress,
) -> io::Result<usize> {
    loop {
        if let Ok(written) = timeout(CHECK_INTERVAL, plain.write(bytes)).await {
            return written;
        }
        if let Some(reason) = endpoint
            .info()
            .close_reason
            .filter(|reason| !reason.is_clean())
        {
            progress.fail(End::Stream, Error::Disconnected(reason).into());
        }
    }
}

/// Waits until the plain socket fails, usually because the peer resets it. Without a socket, waits
/// forever.
async fn failure_of_plain(plain: Option<&ReadHalf<'_>>) -> io::Error {
    let Some(plain) = plain else {
        return pending().await;
    };
    match plain.ready(Interest::ERROR).await {
        Ok(_) => {
            let error = plain.as_ref().take_error().ok().flatten();
            error.unwrap_or_else(|| io::ErrorKind::ConnectionReset.into())
        }
        Err(error) => error,
    }
}

/// Waits until the stream fails. The caller must have stopped reading from the stream, because this
/// function discards all completions that do not report a failure.
async fn failure_of_stream(endpoint: &Endpoint) -> io::Error {
    loop {
        match poll_fn(|cx| endpoint.poll_next_completion(cx)).await {
            Ok(Completion::Disconnected(reason)) | Err(Error::Disconnected(reason)) => {
                if reason.is_clean() {
                    // A close by the peer is not a failure. If a later write to the stream fails,
                    // that write reports the error.
                    return pending().await;
                }
                return Error::Disconnected(reason).into();
            }
            Ok(_) => {}
            Err(error) => return error.into(),
        }
    }
}
