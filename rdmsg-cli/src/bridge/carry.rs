use std::{
    future::{pending, poll_fn},
    io,
    pin::{Pin, pin},
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
    time::timeout,
};

use super::{
    counters::Flow,
    options::EAGER_SIZE_OVER_TCP,
    session::{Plain, Rdmsg, Session},
};

/// The most bytes of a connection that this program holds for the stream. It holds none while the
/// plain end has nothing.
///
/// With the headers of a frame, of TCP and of IP it fits 64 KiB, the longest segment on loopback
/// and the longest that the kernel hands to a network card. A longer piece costs a second segment.
const PIECE: usize = 60 * 1024;

// Over TCP a piece is a frame of its own.
const _: () = assert!(PIECE <= EAGER_SIZE_OVER_TCP as usize);

/// The interval at which a blocked write to a plain end checks whether the other end still exists.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Carries bytes in both directions, until both have ended.
///
/// A direction reads on when its last bytes were taken, so a slow reader stops the writer. One task
/// carries both directions, so no bytes move between threads. It watches each end for a failure,
/// also while it does not read from it.
pub(super) async fn carry(session: &mut Session) -> io::Result<()> {
    let Session { plain, rdmsg, flow } = session;
    let Plain { socket, .. } = plain;
    let Rdmsg { read, write, .. } = rdmsg;
    let endpoint = read.endpoint().clone();
    let (plain_read, plain_write) = socket.split();
    let mut there = pin!(from_plain(plain_read, write, flow));
    let mut back = pin!(to_plain(read, plain_write, flow));
    select! {
        biased;
        ended = &mut there => {
            let plain_read = ended?;
            select! {
                biased;
                ended = back => ended,
                error = failure_of_plain(&plain_read) => Err(error),
            }
        }
        ended = &mut back => {
            ended?;
            select! {
                biased;
                ended = there => ended.map(|_| ()),
                error = failure_of_stream(&endpoint) => Err(error),
            }
        }
    }
}

/// Carries bytes to the stream, and the end behind them. Gives the half back, to be watched.
async fn from_plain<'a>(
    mut plain: ReadHalf<'a>,
    stream: &mut OwnedWriteHalf,
    flow: &Flow,
) -> io::Result<ReadHalf<'a>> {
    let mut piece = Vec::new();
    loop {
        if piece.capacity() == 0 {
            // Idle connections hold no memory for a read, because there may be thousands.
            plain.readable().await?;
            piece.reserve_exact(PIECE);
        }
        piece.clear();
        let len = plain.read_buf(&mut piece).await?;
        if len == 0 {
            stream.shutdown().await?;
            return Ok(plain);
        }
        let mut rest = &*piece;
        while !rest.is_empty() {
            let written = match write_now(stream, rest).await {
                Some(written) => written?,
                None => select! {
                    written = stream.write(rest) => written?,
                    error = failure_of_plain(&plain) => return Err(error),
                },
            };
            flow.count_from_plain(written);
            rest = &rest[written..];
        }
        if len < PIECE {
            piece = Vec::new();
        }
    }
}

/// Carries bytes from the stream to the plain end, without a copy out of the receive buffers, and
/// then the end of the stream.
async fn to_plain(
    stream: &mut OwnedReadHalf,
    mut plain: WriteHalf<'_>,
    flow: &Flow,
) -> io::Result<()> {
    let endpoint = stream.endpoint().clone();
    loop {
        let bytes = stream.fill_buf().await?;
        if bytes.is_empty() {
            return plain.shutdown().await;
        }
        let written = match write_now(&mut plain, bytes).await {
            Some(written) => written?,
            None => write_watched(&mut plain, bytes, &endpoint).await?,
        };
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        flow.count_to_plain(written);
        stream.consume(written);
    }
}

/// Writes the bytes that the end takes at once, if it takes any.
async fn write_now(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Option<io::Result<usize>> {
    poll_fn(|cx| {
        Poll::Ready(match Pin::new(&mut *to).poll_write(cx, bytes) {
            Poll::Ready(written) => Some(written),
            Poll::Pending => None,
        })
    })
    .await
}

/// Waits until the plain end takes bytes or the stream fails. No read from the stream, which would
/// detect the failure, is in progress then.
async fn write_watched(
    plain: &mut WriteHalf<'_>,
    bytes: &[u8],
    endpoint: &Endpoint,
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
            return Err(Error::Disconnected(reason).into());
        }
    }
}

/// Waits until the plain end has failed: it was reset.
async fn failure_of_plain(plain: &ReadHalf<'_>) -> io::Error {
    match plain.ready(Interest::ERROR).await {
        Ok(_) => {
            let error = plain.as_ref().take_error().ok().flatten();
            error.unwrap_or_else(|| io::ErrorKind::ConnectionReset.into())
        }
        Err(error) => error,
    }
}

/// Waits until a stream of which everything was read has failed.
async fn failure_of_stream(endpoint: &Endpoint) -> io::Error {
    loop {
        match poll_fn(|cx| endpoint.poll_next_completion(cx)).await {
            Ok(Completion::Disconnected(reason)) | Err(Error::Disconnected(reason)) => {
                if reason.is_clean() {
                    // The peer has closed, which the next write detects.
                    return pending().await;
                }
                return Error::Disconnected(reason).into();
            }
            Ok(_) => {}
            Err(error) => return error.into(),
        }
    }
}
