//! The frames that a conductor and an agent exchange over a stream. The stream is a TCP connection
//! between two hosts, the virtio port of a virtual machine, or a socket pair.
//!
//! ```text
//! length of the following fields in bytes: u32 | program number: u32 | kind: u8 | payload
//! ```
//!
//! Both u32 values are little-endian. In a frame of kind `o` or `e`, the payload contains bytes
//! that the program has printed to stdout or stderr. All other frames have kind `j`, and their
//! payload is JSON.

use std::{
    ffi::OsString,
    io::{self, Read, Write},
    path::PathBuf,
    sync::{Arc, Mutex},
};

use serde::{Deserialize, Serialize};

use crate::lock;

/// The maximum length of a frame in bytes. A larger length means that the bytes read are not a
/// frame header.
const MAX: usize = 1 << 26;

/// The program number in frames that are about the host itself, and not about a program.
pub const HOST: u32 = 0;

/// A request from the conductor to the agent, or a report from the agent to the conductor.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub enum Frame {
    /// Request: start a program. Later frames about this program have the same program number. The
    /// agent answers with `Began` or `Failed`.
    Start(Job),
    /// Request: write the given bytes to the program's stdin. There is no answer.
    Tell(Vec<u8>),
    /// Request: send the signal with the given number to the program. The agent answers with
    /// `Began` or `Failed`.
    Signal(i32),
    /// Request: end the agent.
    Quit,
    /// Report: the host has booted and can run programs.
    Ready,
    /// Report: the host is alive. Sent regularly.
    Beat,
    /// Report: the request has failed for the given reason.
    Failed(String),
    /// Report: the request has taken effect. The first field is the time in milliseconds since 1970
    /// by the clock of the host. The second field is the process id of the program.
    Began(u64, u32),
    /// Report: the program has printed the given bytes to stdout.
    Out(Vec<u8>),
    /// Report: the program has printed the given bytes to stderr.
    Err(Vec<u8>),
    /// Report: the program has ended with the given exit status. All output of the program itself
    /// was sent before this frame. Output of its children can follow.
    Ended(i32),
}

/// A program to start, with its arguments, directory and environment.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Job {
    /// The program and its arguments.
    pub argv: Vec<OsString>,
    /// The working directory. If `None`, the program inherits the agent's working directory.
    pub dir: Option<PathBuf>,
    /// All environment variables of the program. If `None`, the program inherits the agent's
    /// environment.
    pub env: Option<Vec<(OsString, OsString)>>,
    /// Whether the program's stdin is a pipe to which [`Frame::Tell`] writes. If not, stdin is
    /// /dev/null.
    pub has_stdin: bool,
}

/// The write end of a stream. Threads share it through a mutex.
#[derive(Clone)]
pub struct Sender(Arc<Mutex<dyn Write + Send>>);

impl Sender {
    /// Wraps the write end of a stream.
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
        // Write the frame with one call: a virtio port has no buffer, so it transfers each write
        // separately.
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

/// Reads one frame. Returns the program number of the frame, followed by the frame.
///
/// # Errors
///
/// If the stream has ended, or if the bytes are not a frame.
pub fn read(from: &mut impl Read) -> io::Result<(u32, Frame)> {
    let mut head = [0; 9];
    from.read_exact(&mut head)?;
    let [l0, l1, l2, l3, p0, p1, p2, p3, kind] = head;
    let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    if !(5..=MAX).contains(&len) {
        return Err(io::Error::other(format!("frame length {len} is invalid")));
    }
    let mut payload = vec![0; len - 5];
    from.read_exact(&mut payload)?;
    let frame = match kind {
        b'o' => Frame::Out(payload),
        b'e' => Frame::Err(payload),
        b'j' => serde_json::from_slice(&payload)?,
        kind => return Err(io::Error::other(format!("unknown frame kind {kind:#x}"))),
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
            has_stdin: true,
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
        assert!(
            read(&mut theirs).is_err(),
            "reading must fail after the sender was dropped"
        );
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
