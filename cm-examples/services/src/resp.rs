//! The Redis protocol (RESP): a parser and an encoder for requests and replies, a server session,
//! and a client.

use std::{fmt, io};

use bytes::{Buf, Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::{Duration, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    Result,
    store::{After, Store},
};

/// The maximum length of a line in bytes. A line contains the number of arguments, the length of an
/// argument, or an inline command, which a user can type.
const MAX_LINE: usize = 64 * 1024;

/// The maximum number of arguments of a request.
const MAX_ARGUMENTS: usize = 64 * 1024;

/// The maximum number of bytes in all arguments of one request.
const MAX_REQUEST: usize = 32 << 20;

/// The maximum depth of nested arrays in a reply.
const MAX_DEPTH: usize = 8;

/// When the pending replies reach this number of bytes, the session writes them before it executes
/// the next request.
const MAX_PENDING: usize = 64 * 1024;

/// The minimum free space in the buffer before a read, in bytes.
const READ_SIZE: usize = 16 * 1024;

/// The time limit and the byte limit for the final reads. After the session has sent its last
/// replies, it reads and discards further bytes, and then closes the socket. If the session closed
/// a socket with unread bytes, the kernel would send a reset, and the client could lose the last
/// replies.
const LINGER: (Duration, usize) = (Duration::from_secs(1), 1 << 20);

/// The error for bytes that violate RESP or exceed a limit of this server.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "there is nothing but the text")]
pub struct ProtocolError(pub String);

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Protocol error: {}", self.0)
    }
}

impl std::error::Error for ProtocolError {}

fn refuse<T>(text: impl Into<String>) -> Result<T, ProtocolError> {
    Err(ProtocolError(text.into()))
}

/// Parses requests from a stream of bytes. Each call of [`next`](Self::next) continues after the
/// bytes that the previous call parsed.
#[derive(Debug, Default)]
pub struct RequestReader {
    arguments: Vec<Bytes>,
    /// The number of the request's arguments that have not arrived yet.
    missing: usize,
    /// The length of the next argument in bytes, if the length has arrived and the argument has
    /// not.
    coming: Option<usize>,
    /// The sum of the argument lengths received so far for this request, in bytes.
    size: usize,
}

impl RequestReader {
    /// Returns true if the reader knows the number of arguments of a request, but has not received
    /// all of the arguments.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        self.missing > 0
    }

    /// Returns the next request, or `None` if the request has not arrived completely. A request has
    /// at least one argument.
    ///
    /// # Errors
    ///
    /// Fails if the bytes violate RESP or exceed a limit. The reader must not be used after an
    /// error.
    pub fn next(&mut self, input: &mut BytesMut) -> Result<Option<Vec<Bytes>>, ProtocolError> {
        loop {
            if let Some(len) = self.coming {
                if input.len() < len + 2 {
                    return Ok(None);
                }
                self.arguments.push(input.split_to(len).freeze());
                if !input.starts_with(b"\r\n") {
                    return refuse("an argument is longer than its length");
                }
                input.advance(2);
                self.coming = None;
                self.missing -= 1;
                if self.missing == 0 {
                    self.size = 0;
                    return Ok(Some(std::mem::take(&mut self.arguments)));
                }
            } else {
                let Some(line) = take_line(input)? else {
                    return Ok(None);
                };
                if self.missing > 0 {
                    self.coming = Some(self.argument(&line)?);
                } else if let Some(count) = line.strip_prefix(b"*") {
                    self.missing = match number(count) {
                        Some(count) if count <= MAX_ARGUMENTS as i64 => count.max(0) as usize,
                        _ => return refuse("invalid multibulk length"),
                    };
                } else {
                    let words = line.split(u8::is_ascii_whitespace);
                    let words = words.filter(|word| !word.is_empty());
                    let words: Vec<_> = words.map(|word| line.slice_ref(word)).collect();
                    if !words.is_empty() {
                        return Ok(Some(words));
                    }
                }
            }
        }
    }

    /// Parses the line that contains the length of an argument. Returns the length in bytes.
    fn argument(&mut self, line: &[u8]) -> Result<usize, ProtocolError> {
        let Some(len) = line.strip_prefix(b"$") else {
            let got = line.first().map_or(' ', |byte| char::from(*byte));
            return refuse(format!("expected '$', got '{}'", got.escape_default()));
        };
        let len = number(len).and_then(|len| usize::try_from(len).ok());
        let Some(len) = len.filter(|len| *len <= MAX_REQUEST - self.size) else {
            return refuse("invalid bulk length");
        };
        self.size += len;
        Ok(len)
    }
}

/// Removes a line from the input, and returns the line without its line ending. Returns `None` if
/// the line is not complete.
fn take_line(input: &mut BytesMut) -> Result<Option<Bytes>, ProtocolError> {
    let searched = input.len().min(MAX_LINE);
    let Some(end) = input[..searched].iter().position(|byte| *byte == b'\n') else {
        if searched == MAX_LINE {
            return refuse("a line is too long");
        }
        return Ok(None);
    };
    let mut line = input.split_to(end).freeze();
    input.advance(1);
    if line.ends_with(b"\r") {
        line.truncate(end - 1);
    }
    Ok(Some(line))
}

/// Parses a decimal number. Rejects a plus sign, as Redis does.
pub(crate) fn number(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    if text.starts_with('+') {
        return None;
    }
    text.parse().ok()
}

/// Appends a request to the output.
pub fn write_request(output: &mut BytesMut, arguments: &[impl AsRef<[u8]>]) {
    output.extend_from_slice(format!("*{}\r\n", arguments.len()).as_bytes());
    for argument in arguments {
        Reply::bulk(argument.as_ref()).write(output);
    }
}

/// A reply to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "RESP 2 has no more")]
pub enum Reply {
    /// A short text, such as `OK`.
    Status(String),
    /// An error: a code in capitals, such as `ERR`, and a description.
    Error(String),
    /// A number.
    Integer(i64),
    /// A value, which can contain any bytes.
    Bulk(Bytes),
    /// The key has no value.
    Nil,
    /// An array of replies.
    Array(Vec<Self>),
}

impl Reply {
    /// Returns the reply `OK`.
    #[must_use]
    pub fn ok() -> Self {
        Self::Status("OK".to_owned())
    }

    /// Returns a reply that contains a copy of `bytes`.
    #[must_use]
    pub fn bulk(bytes: &[u8]) -> Self {
        Self::Bulk(Bytes::copy_from_slice(bytes))
    }

    /// Appends the encoded reply to the output.
    pub fn write(&self, output: &mut BytesMut) {
        match self {
            Self::Status(text) => output.extend_from_slice(format!("+{text}\r\n").as_bytes()),
            Self::Error(text) => output.extend_from_slice(format!("-{text}\r\n").as_bytes()),
            Self::Integer(number) => output.extend_from_slice(format!(":{number}\r\n").as_bytes()),
            Self::Nil => output.extend_from_slice(b"$-1\r\n"),
            Self::Bulk(bytes) => {
                output.extend_from_slice(format!("${}\r\n", bytes.len()).as_bytes());
                output.extend_from_slice(bytes);
                output.extend_from_slice(b"\r\n");
            }
            Self::Array(replies) => {
                output.extend_from_slice(format!("*{}\r\n", replies.len()).as_bytes());
                replies.iter().for_each(|reply| reply.write(output));
            }
        }
    }

    /// Removes a reply from the input and returns it, or returns `None` if the reply is not
    /// complete.
    ///
    /// # Errors
    ///
    /// Fails if the bytes violate RESP.
    pub fn read(input: &mut BytesMut) -> Result<Option<Self>, ProtocolError> {
        let mut rest = &input[..];
        let Some(reply) = Self::parse(&mut rest, 0)? else {
            return Ok(None);
        };
        let left = rest.len();
        input.advance(input.len() - left);
        Ok(Some(reply))
    }

    fn parse(rest: &mut &[u8], depth: usize) -> Result<Option<Self>, ProtocolError> {
        let Some(end) = rest.windows(2).position(|two| two == b"\r\n") else {
            return Ok(None);
        };
        let Some((kind, text)) = rest[..end].split_first() else {
            return refuse("the line of the reply is empty");
        };
        *rest = &rest[end + 2..];
        let as_text = || String::from_utf8_lossy(text).into_owned();
        let count = || number(text).map_or_else(|| refuse("the length is not a number"), Ok);
        Ok(Some(match kind {
            b'+' => Self::Status(as_text()),
            b'-' => Self::Error(as_text()),
            b':' => Self::Integer(count()?),
            b'$' | b'*' if text == b"-1" => Self::Nil,
            b'$' => {
                let Ok(len) = usize::try_from(count()?) else {
                    return refuse("invalid bulk length");
                };
                if rest.len() < len.saturating_add(2) {
                    return Ok(None);
                }
                let bytes = Self::bulk(&rest[..len]);
                *rest = &rest[len + 2..];
                bytes
            }
            b'*' if depth < MAX_DEPTH => {
                let mut replies = Vec::new();
                for _ in 0..count()? {
                    match Self::parse(rest, depth + 1)? {
                        Some(reply) => replies.push(reply),
                        None => return Ok(None),
                    }
                }
                Self::Array(replies)
            }
            _ => return refuse("the reply has an unknown type, or is nested too deeply"),
        }))
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(text) => f.write_str(text),
            Self::Error(text) => write!(f, "(error) {text}"),
            Self::Integer(number) => write!(f, "(integer) {number}"),
            Self::Bulk(bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
            Self::Nil => f.write_str("(nil)"),
            Self::Array(replies) if replies.is_empty() => f.write_str("(empty array)"),
            Self::Array(replies) => {
                for (number, reply) in (1..).zip(replies) {
                    let end = if number == replies.len() { "" } else { "\n" };
                    write!(f, "{number}) {reply}{end}")?;
                }
                Ok(())
            }
        }
    }
}

/// Serves one client until the client closes the connection or sends `QUIT`, or until `stop` is
/// cancelled. Replies to each request that the session has read completely.
///
/// # Errors
///
/// Fails if the connection breaks, or if a request is malformed. The session replies to a malformed
/// request with an error.
pub async fn session<S>(mut stream: S, store: &Store, stop: CancellationToken) -> Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut reader = RequestReader::default();
    let mut input = BytesMut::new();
    let mut output = BytesMut::new();
    loop {
        loop {
            match reader.next(&mut input) {
                Ok(Some(request)) => {
                    if let After::Close = store.execute(&request, &mut output) {
                        return close(&mut stream, &output).await;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    Reply::Error(format!("ERR {error}")).write(&mut output);
                    close(&mut stream, &output).await?;
                    return Err(error.into());
                }
            }
            if output.len() >= MAX_PENDING {
                stream.write_all(&output).await?;
                output.clear();
            }
        }
        stream.write_all(&output).await?;
        output.clear();
        input.reserve(READ_SIZE);
        let read = tokio::select! {
            read = stream.read_buf(&mut input) => read?,
            () = stop.cancelled() => return close(&mut stream, &output).await,
        };
        if read == 0 {
            if reader.is_inside() || !input.is_empty() {
                return Err("the client closed the connection in the middle of a request".into());
            }
            return Ok(stream.shutdown().await?);
        }
    }
}

/// Writes the pending replies, shuts down the stream, and then reads within the limits of
/// [`LINGER`].
async fn close<S>(stream: &mut S, output: &[u8]) -> Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    stream.write_all(output).await?;
    stream.shutdown().await?;
    let (limit, most) = LINGER;
    let mut rest = stream.take(most as u64);
    let mut sink = tokio::io::sink();
    // Ignore an error, because the session closes the connection anyway.
    let _ = timeout(limit, tokio::io::copy(&mut rest, &mut sink)).await;
    Ok(())
}

/// A RESP client, which sends its requests on one connection.
#[derive(Debug)]
pub struct Client<S> {
    stream: S,
    input: BytesMut,
    output: BytesMut,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    /// Creates a client for an established connection.
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            input: BytesMut::new(),
            output: BytesMut::new(),
        }
    }

    /// Adds a request to the batch that the next [`flush`](Self::flush) sends.
    pub fn push(&mut self, arguments: &[impl AsRef<[u8]>]) {
        write_request(&mut self.output, arguments);
    }

    /// Sends the batch of requests.
    ///
    /// # Errors
    ///
    /// Fails if the connection breaks.
    pub async fn flush(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.output).await?;
        self.output.clear();
        self.stream.flush().await
    }

    /// Waits for the next reply.
    ///
    /// # Errors
    ///
    /// Fails if the connection breaks or the reply is malformed.
    pub async fn reply(&mut self) -> Result<Reply> {
        loop {
            if let Some(reply) = Reply::read(&mut self.input)? {
                return Ok(reply);
            }
            self.input.reserve(READ_SIZE);
            if self.stream.read_buf(&mut self.input).await? == 0 {
                return Err("the server closed the connection".into());
            }
        }
    }

    /// Sends a request, and waits for its reply.
    ///
    /// # Errors
    ///
    /// Fails if the connection breaks or the reply is malformed.
    pub async fn ask(&mut self, arguments: &[impl AsRef<[u8]>]) -> Result<Reply> {
        self.push(arguments);
        self.flush().await?;
        self.reply().await
    }
}
