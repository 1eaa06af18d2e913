//! The hosts' frames: their output, on our own stdout and stderr as it comes, and news.

use std::{
    io::{self, ErrorKind, Stderr, Stdout, Write},
    mem,
    sync::mpsc::Sender,
};

use hosts::wire::{Frame, HOST};

use crate::{
    place::HOSTS,
    watch::{News, Stop},
};

/// The number of the command among a host's programs.
pub(crate) const COMMAND: u32 = 1;

/// The status of a command that cannot be run.
const NOT_RUN: u8 = 127;

/// Turns the frames of a host into output and news.
#[derive(Debug)]
pub(crate) struct Listener {
    host: usize,
    stdout: Sink<Stdout>,
    stderr: Sink<Stderr>,
    news: Sender<News>,
}

impl Listener {
    pub(crate) fn new(host: usize, named: bool, news: Sender<News>) -> Self {
        Self {
            host,
            stdout: Sink::new(io::stdout(), host, named),
            stderr: Sink::new(io::stderr(), host, named),
            news,
        }
    }

    /// Takes one frame, or an error in place of one. Returns whether it needs more.
    pub(crate) fn hear(&mut self, read: io::Result<(u32, Frame)>) -> bool {
        let lost = |why: &str| Ok(Some(News::Stop(Stop::lost(self.host, why))));
        let news = match read {
            Ok((number, frame)) => self.take(number, frame),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => lost("the machine stopped"),
            Err(error) => lost(&error.to_string()),
        };
        let news = news.unwrap_or_else(|_| Some(News::Stop(Stop::unheard())));
        let is_last = matches!(news, Some(News::Stop(_)));
        // Sending fails if the main thread has ended.
        news.is_none_or(|news| self.news.send(news).is_ok()) && !is_last
    }

    /// Fails if the reader of the output is gone.
    fn take(&mut self, number: u32, frame: Frame) -> io::Result<Option<News>> {
        let host = self.host;
        Ok(Some(match frame {
            Frame::Out(bytes) => return self.stdout.write(&bytes).map(|()| None),
            Frame::Err(bytes) => return self.stderr.write(&bytes).map(|()| None),
            Frame::Beat | Frame::Began(..) => return Ok(None),
            Frame::Ended(status) => {
                self.stdout.finish()?;
                self.stderr.finish()?;
                News::Ended(host, status as u8)
            }
            Frame::Ready => News::Ready(host),
            Frame::Failed(why) if number == HOST => News::Stop(Stop::lost(host, why)),
            Frame::Failed(why) => {
                eprintln!("lab: {why}");
                News::Ended(host, NOT_RUN)
            }
            Frame::Start(_) | Frame::Tell(_) | Frame::Signal(_) | Frame::Quit => {
                News::Stop(Stop::lost(host, "it sends what only we may"))
            }
        }))
    }
}

/// One stream of one host.
#[derive(Debug)]
struct Sink<W> {
    to: W,
    /// Stands before each line, unless it is empty.
    prefix: String,
    /// The beginning of a line that is not complete, if there is a prefix.
    held: Vec<u8>,
}

impl<W: Write> Sink<W> {
    /// If it is `named`, each line begins with the name of its host.
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
        let end = match &*self.prefix {
            "" => Some(self.held.len()),
            _ => self
                .held
                .iter()
                .rposition(|&b| b == b'\n')
                .map(|end| end + 1),
        };
        let rest = self.held.split_off(end.unwrap_or(0));
        let complete = mem::replace(&mut self.held, rest);
        let lines = complete.split_inclusive(|&b| b == b'\n');
        // One write, so that lines of several hosts do not mix.
        let bytes: Vec<_> = lines
            .flat_map(|line| [self.prefix.as_bytes(), line])
            .collect();
        self.to.write_all(&bytes.concat())?;
        self.to.flush()
    }

    /// Writes a last line that has no end.
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
        String::from_utf8(mem::take(&mut sink.to)).unwrap()
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
