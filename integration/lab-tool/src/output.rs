//! The hosts' output, on our own stdout and stderr as it comes.

use std::{
    io::{self, Write},
    mem,
    os::fd::AsFd,
    thread,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::place::HOSTS;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

/// One stream of one host.
#[derive(Debug)]
pub(crate) struct Sink {
    stream: Stream,
    lines: Lines,
}

impl Sink {
    /// If it is `named`, each line begins with the name of its host.
    pub(crate) fn new(stream: Stream, host: usize, named: bool) -> Self {
        let prefix = if named {
            format!("{}| ", HOSTS[host])
        } else {
            String::new()
        };
        Self {
            stream,
            lines: Lines {
                prefix,
                held: vec![],
            },
        }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let bytes = self.lines.feed(bytes);
        self.put(&bytes)
    }

    /// Writes what is left of a last line that has no end.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        let bytes = self.lines.finish();
        self.put(&bytes)
    }

    fn put(&self, bytes: &[u8]) -> io::Result<()> {
        fn all(mut to: impl Write, bytes: &[u8]) -> io::Result<()> {
            to.write_all(bytes)?;
            to.flush()
        }
        match self.stream {
            Stream::Stdout => all(io::stdout().lock(), bytes),
            Stream::Stderr => all(io::stderr().lock(), bytes),
        }
    }
}

/// Puts a prefix before each line, which means to hold a line back until it is complete.
#[derive(Debug)]
struct Lines {
    prefix: String,
    held: Vec<u8>,
}

impl Lines {
    fn feed(&mut self, bytes: &[u8]) -> Vec<u8> {
        if self.prefix.is_empty() {
            return bytes.to_vec();
        }
        self.held.extend(bytes);
        let complete = self
            .held
            .iter()
            .rposition(|&b| b == b'\n')
            .map_or(0, |end| end + 1);
        let rest = self.held.split_off(complete);
        let lines = mem::replace(&mut self.held, rest);
        let lines = lines.split_inclusive(|&b| b == b'\n');
        lines
            .flat_map(|line| [self.prefix.as_bytes(), line])
            .flatten()
            .copied()
            .collect()
    }

    fn finish(&mut self) -> Vec<u8> {
        if self.held.is_empty() {
            vec![]
        } else {
            self.feed(b"\n")
        }
    }
}

/// Calls `tell` when nobody reads our stdout or stderr any more, even if there is nothing to write.
pub(crate) fn on_unheard(tell: impl FnOnce() + Send + 'static) {
    thread::spawn(move || {
        let (stdout, stderr) = (io::stdout(), io::stderr());
        // Errors and hang-ups are reported without being asked for.
        let mut fds =
            [&stdout.as_fd(), &stderr.as_fd()].map(|fd| PollFd::new(*fd, PollFlags::empty()));
        while let Err(nix::Error::EINTR) = poll(&mut fds, PollTimeout::NONE) {}
        tell();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_gets_the_prefix() {
        let mut lines = Lines {
            prefix: "b| ".into(),
            held: vec![],
        };
        assert_eq!(lines.feed(b"one\ntw"), b"b| one\n");
        assert_eq!(lines.feed(b"o\n\nthr"), b"b| two\nb| \n");
        assert_eq!(lines.feed(b"ee"), b"");
        assert_eq!(lines.finish(), b"b| three\n");
        assert_eq!(lines.finish(), b"");
    }

    #[test]
    fn a_single_host_is_passed_through() {
        let mut lines = Lines {
            prefix: String::new(),
            held: vec![],
        };
        assert_eq!(lines.feed(b"no end"), b"no end");
        assert_eq!(lines.finish(), b"");
    }
}
