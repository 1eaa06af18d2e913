//! The conversation between this tool and its agent in a guest, over one virtio-serial port.
//!
//! The agent sends [`Frame::Ready`] (or [`Frame::Failed`]) once, receives a [`Frame::Run`], and
//! answers with any number of output frames and one [`Frame::Exit`]. It sends a [`Frame::Beat`]
//! each [`BEAT`], which shows that the machine goes on.

use std::{
    ffi::OsString,
    io::{self, Read, Write},
    os::unix::ffi::{OsStrExt, OsStringExt},
    process::Command,
    time::Duration,
};

/// The port's name, under which the guest finds it in sysfs.
pub(crate) const PORT: &str = "lab";

/// Time between two signs of life, by the guest's clock.
pub(crate) const BEAT: Duration = Duration::from_secs(5);

/// Longer frames can only mean that the two sides lost step.
const MAX_PAYLOAD: usize = 1 << 20;

#[derive(Debug, PartialEq)]
pub(crate) enum Frame {
    Ready,
    Failed(String),
    Run(Job),
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    Exit(u8),
    Beat,
}

/// A command with its whole environment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Job {
    pub(crate) dir: OsString,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) argv: Vec<OsString>,
}

impl Frame {
    pub(crate) fn write_to(&self, port: &mut impl Write) -> io::Result<()> {
        let (tag, payload) = match self {
            Self::Ready => (b'r', vec![]),
            Self::Failed(why) => (b'f', why.clone().into_bytes()),
            Self::Run(job) => (b'j', job.encode()),
            Self::Stdout(bytes) => (b'o', bytes.clone()),
            Self::Stderr(bytes) => (b'e', bytes.clone()),
            Self::Exit(status) => (b'x', vec![*status]),
            Self::Beat => (b'b', vec![]),
        };
        // One write per frame: a port has no buffer of its own.
        let mut frame = vec![tag];
        frame.extend((payload.len() as u32).to_le_bytes());
        frame.extend(payload);
        port.write_all(&frame)
    }

    pub(crate) fn read_from(port: &mut impl Read) -> io::Result<Self> {
        let mut head = [0; 5];
        port.read_exact(&mut head)?;
        let [tag, len @ ..] = head;
        let len = u32::from_le_bytes(len) as usize;
        if len > MAX_PAYLOAD {
            return Err(io::Error::other(format!("frame of {len} bytes")));
        }
        let mut payload = vec![0; len];
        port.read_exact(&mut payload)?;
        let frame = match (tag, &*payload) {
            (b'r', []) => Self::Ready,
            (b'f', why) => Self::Failed(String::from_utf8_lossy(why).into_owned()),
            (b'j', job) => Self::Run(Job::decode(job)?),
            (b'o', _) => Self::Stdout(payload),
            (b'e', _) => Self::Stderr(payload),
            (b'x', &[status]) => Self::Exit(status),
            (b'b', []) => Self::Beat,
            _ => return Err(io::Error::other(format!("unknown frame {tag:#x}"))),
        };
        Ok(frame)
    }
}

impl Job {
    /// Strings joined by NUL, which no argument, variable or path can hold:
    /// folder, number of variables, names and values in turn, arguments.
    fn encode(&self) -> Vec<u8> {
        let count = self.env.len().to_string();
        let mut strings = vec![self.dir.as_bytes(), count.as_bytes()];
        for (name, value) in &self.env {
            strings.extend([name.as_bytes(), value.as_bytes()]);
        }
        strings.extend(self.argv.iter().map(|arg| arg.as_bytes()));
        strings.join(&0)
    }

    fn decode(bytes: &[u8]) -> io::Result<Self> {
        let mut strings = bytes
            .split(|&b| b == 0)
            .map(|s| OsString::from_vec(s.to_vec()));
        let mut next = || {
            strings
                .next()
                .ok_or_else(|| io::Error::other("job is cut short"))
        };
        let dir = next()?;
        let count = next()?;
        let count: usize = count
            .to_str()
            .and_then(|count| count.parse().ok())
            .ok_or_else(|| io::Error::other("job without a count"))?;
        let env = (0..count)
            .map(|_| Ok((next()?, next()?)))
            .collect::<io::Result<_>>()?;
        Ok(Self {
            dir,
            env,
            argv: strings.collect(),
        })
    }

    /// One argument is a line for the shell; several are a program and its arguments, as they are.
    pub(crate) fn command(&self) -> Command {
        let mut command = match &*self.argv {
            [program, arguments @ ..] if !arguments.is_empty() => {
                let mut command = Command::new(program);
                command.args(arguments);
                command
            }
            line => {
                let mut command = Command::new("sh");
                command.arg("-c").args(line);
                command
            }
        };
        command.current_dir(&self.dir).env_clear();
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(argv: &[&str]) -> Job {
        Job {
            dir: "/some where".into(),
            env: vec![("A".into(), "1=2".into()), ("EMPTY".into(), "".into())],
            argv: argv.iter().map(OsString::from).collect(),
        }
    }

    #[test]
    fn frames_survive_the_wire() {
        let frames = [
            Frame::Ready,
            Frame::Failed("no device".into()),
            Frame::Run(job(&[
                "printf",
                "%s\n",
                "two words",
                "$HOME",
                "'",
                "\\",
                "",
            ])),
            Frame::Stdout(b"\0\xff\n".to_vec()),
            Frame::Stderr(vec![]),
            Frame::Exit(137),
            Frame::Beat,
        ];
        let mut wire = vec![];
        for frame in &frames {
            frame.write_to(&mut wire).unwrap();
        }
        let mut wire = &wire[..];
        for frame in &frames {
            assert_eq!(&Frame::read_from(&mut wire).unwrap(), frame);
        }
        assert!(Frame::read_from(&mut wire).is_err(), "end of the wire");
    }

    #[test]
    fn garbage_is_refused() {
        for garbage in [
            &b"z\0\0\0\0"[..],
            b"x\0\0\0\0",
            b"o\xff\xff\xff\xff",
            b"j\x02\0\0\0/\0",
        ] {
            assert!(Frame::read_from(&mut &*garbage).is_err(), "{garbage:?}");
        }
    }

    #[test]
    fn one_argument_is_a_shell_line() {
        let output = |argv: &[&str]| {
            let job = Job {
                dir: "/".into(),
                ..job(argv)
            };
            String::from_utf8(job.command().output().unwrap().stdout).unwrap()
        };
        assert_eq!(output(&["echo $A"]), "1=2\n");
        assert_eq!(output(&["echo", "$A", "two  words"]), "$A two  words\n");
    }
}
