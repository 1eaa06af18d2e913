use std::{
    io::{self, ErrorKind, Stderr, Stdout},
    sync::mpsc::Sender,
};

use hosts::wire::{Frame, HOST};

use crate::{
    output::Sink,
    watch::{Lost, News, Stop},
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
        let host = self.host;
        let news = match read {
            Ok((number, frame)) => self.take(number, frame),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                Ok(Some(Lost::new(host, "the machine stopped").into()))
            }
            Err(error) => Ok(Some(Lost::new(host, error).into())),
        };
        let news = news.unwrap_or_else(|_| Some(News::Stop(Stop::unheard())));
        let is_last = matches!(news, Some(News::Lost(_) | News::Stop(_)));
        // Sending fails if the main thread has ended.
        news.is_none_or(|news| self.news.send(news).is_ok()) && !is_last
    }

    /// Fails if nobody reads the output.
    fn take(&mut self, number: u32, frame: Frame) -> io::Result<Option<News>> {
        let host = self.host;
        Ok(Some(match frame {
            Frame::Out(bytes) => return self.stdout.write(&bytes).map(|()| None),
            Frame::Err(bytes) => return self.stderr.write(&bytes).map(|()| None),
            Frame::Beat | Frame::Began(..) => return Ok(None),
            Frame::Ended(status) => {
                self.stdout.finish()?;
                self.stderr.finish()?;
                let status = status as u8;
                News::Ended { host, status }
            }
            Frame::Ready => News::Ready { host },
            Frame::Failed(why) if number == HOST => Lost::new(host, why).into(),
            Frame::Failed(why) => {
                eprintln!("lab: {why}");
                let status = NOT_RUN;
                News::Ended { host, status }
            }
            Frame::Start(_) | Frame::Tell(_) | Frame::Signal(_) | Frame::Quit => {
                Lost::new(host, "it sends what only we may").into()
            }
        }))
    }
}
