//! The frames that a conductor and an agent exchange over one stream: a TCP connection between two
//! hosts, the port of a virtual machine, or a pair of sockets.
//!
//! ```text
//! length of the rest: u32 | number of the program: u32 | kind: u8 | payload
//! ```
//!
//! Numbers are little-endian. The payload of kind `o` or `e` is output as the program printed it;
//! that of kind `j` is any other frame as JSON.

use std::{
    ffi::OsString,
    io::{self, Read, Write},
    path::PathBuf,
    sync::{Arc, Mutex},
};

use serde::{Deserialize, Serialize};

use crate::lock;

/// The longest frame in bytes. A longer one means that the two sides are out of step.
const MAX: usize = 1 << 26;

/// The number before frames that belong to no program.
pub const HOST: u32 = 0;

/// A request of the conductor, or a report of the agent.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[expect(clippy::exhaustive_enums, reason = "both sides are built together")]
pub enum Frame {
    /// Start a program with this number. The answer is `Began` or `Failed`.
    Start(Job),
    /// Write these bytes to the program's stdin.
    Tell(Vec<u8>),
    /// Send this signal to the program. The answer is `Began` or `Failed`.
    Signal(i32),
    /// End the agent.
    Quit,
    /// The host is ready for programs.
    Ready,
    /// The host is alive.
    Beat,
    /// The request failed for this reason.
    Failed(String),
    /// The request took effect at this time of the agent, in milliseconds since 1970, on the
    /// program with this process id.
    Began(u64, u32),
    /// The program printed this to stdout.
    Out(Vec<u8>),
    /// The program printed this to stderr.
    Err(Vec<u8>),
    /// The program ended with this status, and its output is complete.
    Ended(i32),
}

/// A command.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[expect(clippy::exhaustive_structs, reason = "both sides are built together")]
pub struct Job {
    /// The program and its arguments.
    pub argv: Vec<OsString>,
    /// The working directory; `None` for the agent's.
    pub dir: Option<PathBuf>,
    /// The whole environment; `None` for the agent's.
    pub env: Option<Vec<(OsString, OsString)>>,
    /// Whether its stdin is a pipe for [`Frame::Tell`] instead of /dev/null.
    pub told: bool,
}

/// The writing end of a stream, which threads share.
#[derive(Clone)]
pub struct Sender(Arc<Mutex<dyn Write + Send>>);

impl Sender {
    /// Wraps the writing end of a stream.
    pub fn new(stream: impl Write + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(stream)))
    }

    /// Writes one frame.
    ///
    /// # Errors
    ///
    /// If the stream cannot be written to.
    pub fn send(&self, program: u32, frame: &Frame) -> io::Result<()> {
        let json;
        let (kind, payload) = match frame {
            Frame::Out(bytes) => (b'o', bytes),
            Frame::Err(bytes) => (b'e', bytes),
            frame => {
                json = serde_json::to_vec(frame)?;
                (b'j', &json)
            }
        };
        // One write for each frame, because a virtio port has no buffer.
        let mut bytes = ((payload.len() + 5) as u32).to_le_bytes().to_vec();
        bytes.extend(program.to_le_bytes());
        bytes.push(kind);
        bytes.extend(payload);
        lock(&self.0).write_all(&bytes)
    }
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sender")
    }
}

/// Reads one frame and the number of its program.
///
/// # Errors
///
/// At the end of the stream, and if the bytes are not a frame.
pub fn read(from: &mut impl Read) -> io::Result<(u32, Frame)> {
    let mut head = [0; 9];
    from.read_exact(&mut head)?;
    let [l0, l1, l2, l3, p0, p1, p2, p3, kind] = head;
    let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    if !(5..=MAX).contains(&len) {
        return Err(io::Error::other(format!("a frame of {len} bytes")));
    }
    let mut payload = vec![0; len - 5];
    from.read_exact(&mut payload)?;
    let frame = match kind {
        b'o' => Frame::Out(payload),
        b'e' => Frame::Err(payload),
        b'j' => serde_json::from_slice(&payload)?,
        kind => return Err(io::Error::other(format!("a frame of kind {kind:#x}"))),
    };
    Ok((u32::from_le_bytes([p0, p1, p2, p3]), frame))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn frames_survive_the_wire() {
        let job = Job {
            argv: ["printf", "two words", "'", "\\", "\n", ""]
                .map(OsString::from)
                .to_vec(),
            dir: Some("/some where".into()),
            env: Some(vec![
                ("A".into(), "1=2".into()),
                ("EMPTY".into(), "".into()),
            ]),
            told: true,
        };
        let frames = [
            Frame::Ready,
            Frame::Failed("no device".into()),
            Frame::Start(job),
            Frame::Out(b"\0\xff\n".to_vec()),
            Frame::Err(vec![]),
            Frame::Ended(137),
        ];
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let sender = Sender::new(ours);
        for (number, frame) in (7..).zip(&frames) {
            sender.send(number, frame).unwrap();
        }
        drop(sender);
        for (number, frame) in (7..).zip(frames) {
            assert_eq!(read(&mut theirs).unwrap(), (number, frame));
        }
        assert!(read(&mut theirs).is_err(), "end of the wire");
    }

    #[test]
    fn garbage_is_refused() {
        for garbage in [
            &b"\x05\0\0\0\0\0\0\0z"[..],
            b"\x04\0\0\0\0\0\0\0o",
            b"\xff\xff\xff\xff\0\0\0\0o",
            b"\x07\0\0\0\0\0\0\0j{}",
            b"\x09\0\0\0\0\0\0\0ocut",
        ] {
            assert!(read(&mut &*garbage).is_err(), "{garbage:?}");
        }
    }
}
