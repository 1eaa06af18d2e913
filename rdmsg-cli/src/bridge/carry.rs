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

/// The size in bytes of the buffer between a connection's plain end and its stream. The connection
/// has no buffer while the plain end has no bytes to read.
///
/// With the headers of the frame, of TCP and of IP, a full buffer fits into 64 KiB. This is the
/// maximum length of a segment on loopback, and of a segment that the kernel passes to a network
/// card. A larger buffer would need a second segment.
const PIECE: usize = 60 * 1024;

// Each buffer must fit into one eager frame over TCP.
const _: () = assert!(PIECE <= EAGER_SIZE_OVER_TCP as usize);

/// The interval at which a blocked write to the plain end checks whether the stream has failed.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Forwards bytes in both directions until both directions have ended.
///
/// Each direction writes all bytes of a read before its next read, so a slow reader blocks the
/// writer. One task forwards both directions, so no bytes move between threads. The task detects a
/// failure of each end, even while it does not read from that end.
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

/// Forwards bytes and then the end of file from the plain socket to the stream. Returns the read
/// half of the socket, so that the caller can still detect a failure of the socket.
async fn from_plain<'a>(
    mut plain: ReadHalf<'a>,
    stream: &mut OwnedWriteHalf,
    flow: &Flow,
) -> io::Result<ReadHalf<'a>> {
    let mut piece = Vec::new();
    loop {
        if piece.capacity() == 0 {
            // Allocate the buffer only when there are bytes to read, because thousands of
            // connections may be idle.
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

/// Forwards bytes and then the end of file from the stream to the plain socket. Writes directly
/// from the buffers that the device has filled.
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

/// Writes without waiting, possibly only the first of the bytes. Returns `None` if the write would
/// wait.
async fn write_now(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Option<io::Result<usize>> {
    poll_fn(|cx| {
        Poll::Ready(match Pin::new(&mut *to).poll_write(cx, bytes) {
            Poll::Ready(written) => Some(written),
            Poll::Pending => None,
        })
    })
    .await
}

/// Writes bytes to the plain end. Returns an error if the stream fails during the wait. This
/// function has to check the stream because no read from it is in progress.
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

/// Waits until the plain socket fails, usually because the peer resets it.
async fn failure_of_plain(plain: &ReadHalf<'_>) -> io::Error {
    match plain.ready(Interest::ERROR).await {
        Ok(_) => {
            let error = plain.as_ref().take_error().ok().flatten();
            error.unwrap_or_else(|| io::ErrorKind::ConnectionReset.into())
        }
        Err(error) => error,
    }
}

/// Waits until the stream fails. The caller has read all bytes of the stream.
async fn failure_of_stream(endpoint: &Endpoint) -> io::Error {
    loop {
        match poll_fn(|cx| endpoint.poll_next_completion(cx)).await {
            Ok(Completion::Disconnected(reason)) | Err(Error::Disconnected(reason)) => {
                if reason.is_clean() {
                    // The peer has closed the stream. The next write to the stream returns the
                    // error.
                    return pending().await;
                }
                return Error::Disconnected(reason).into();
            }
            Ok(_) => {}
            Err(error) => return error.into(),
        }
    }
}
