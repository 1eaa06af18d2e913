//! Forwards a command's output to stdout and stderr as it arrives.

use std::{
    io::{self, Write},
    sync::mpsc::{Receiver, Sender},
};

use hosts::wire::Frame;

use crate::{
    host_network::HOSTS,
    watch::{HostEvent, Stop},
};

/// The exit status reported for a command that cannot be started.
const NOT_RUN: u8 = 127;

/// Writes the output of a host's command to stdout and stderr, and reports the command's end to
/// `news`. If `named` is set, each line begins with the host's name.
pub(crate) fn follow(host: usize, named: bool, frames: &Receiver<Frame>, news: &Sender<HostEvent>) {
    let last = write_all(host, named, frames);
    // Ignore the error: sending fails if the main thread has already ended.
    let _ = news.send(last.unwrap_or(HostEvent::Stop(Stop::OutputClosed)));
}

/// Writes the output of a host's command until the command ends. Returns the final event.
fn write_all(host: usize, named: bool, frames: &Receiver<Frame>) -> io::Result<HostEvent> {
    let mut stdout = Sink::new(io::stdout(), host, named);
    let mut stderr = Sink::new(io::stderr(), host, named);
    loop {
        match frames.recv() {
            Ok(Frame::Out(bytes)) => stdout.write(&bytes)?,
            Ok(Frame::Err(bytes)) => stderr.write(&bytes)?,
            Ok(Frame::Began(..)) => {}
            Ok(Frame::Ended(status)) => {
                stdout.finish()?;
                stderr.finish()?;
                return Ok(HostEvent::Ended(host, status as u8));
            }
            Ok(Frame::Failed(why)) => {
                eprintln!("lab: {why}");
                return Ok(HostEvent::Ended(host, NOT_RUN));
            }
            Ok(other) => return Ok(HostEvent::Stop(Stop::unexpected(host, &other))),
            Err(_) => return Ok(HostEvent::Stop(Stop::ended(host))),
        }
    }
}

/// The stdout or stderr of one host's command.
#[derive(Debug)]
struct Sink<W> {
    to: W,
    /// The text before each line. If it is empty, all bytes are forwarded unchanged.
    prefix: String,
    /// The bytes of an incomplete line, if there is a prefix. They are written when the line is
    /// complete.
    held: Vec<u8>,
}

impl<W: Write> Sink<W> {
    /// Creates a sink. If `named` is set, each line begins with the host's name.
    fn new(to: W, host: usize, named: bool) -> Self {
        let prefix = named.then(|| format!("{}| ", HOSTS[host]));
        Self {
            to,
            prefix: prefix.unwrap_or_default(),
            held: vec![],
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.held.extend(bytes);
        let last_newline = self.held.iter().rposition(|&b| b == b'\n');
        let end = match &*self.prefix {
            "" => self.held.len(),
            _ => last_newline.map_or(0, |at| at + 1),
        };
        let complete: Vec<_> = self.held.drain(..end).collect();
        let lines = complete.split_inclusive(|&b| b == b'\n');
        // Write all lines with one call, so that lines of different hosts are not interleaved.
        let bytes: Vec<_> = lines
            .flat_map(|line| [self.prefix.as_bytes(), line])
            .collect();
        self.to.write_all(&bytes.concat())?;
        self.to.flush()
    }

    /// Writes the incomplete last line, if any, and appends a newline.
    fn finish(&mut self) -> io::Result<()> {
        match *self.held {
            [] => Ok(()),
            _ => self.write(b"\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(sink: &mut Sink<Vec<u8>>, bytes: &[u8]) -> String {
        sink.write(bytes).unwrap();
        String::from_utf8(std::mem::take(&mut sink.to)).unwrap()
    }

    #[test]
    fn every_line_gets_the_prefix() {
        let mut sink = Sink::new(Vec::new(), 1, true);
        assert_eq!(written(&mut sink, b"one\ntw"), "b| one\n");
        assert_eq!(written(&mut sink, b"o\n\nthr"), "b| two\nb| \n");
        assert_eq!(written(&mut sink, b"ee"), "");
        sink.finish().unwrap();
        assert_eq!(written(&mut sink, b""), "b| three\n");
        sink.finish().unwrap();
        assert_eq!(written(&mut sink, b""), "");
    }

    #[test]
    fn a_single_host_is_passed_through() {
        let mut sink = Sink::new(Vec::new(), 0, false);
        assert_eq!(written(&mut sink, b"no end"), "no end");
        sink.finish().unwrap();
        assert_eq!(written(&mut sink, b""), "");
    }
}
