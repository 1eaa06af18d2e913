use std::{fmt, io, sync::mpsc::Sender};

use hosts::wire::{Frame, HOST};

use crate::{
    output::{Sink, Stream},
    watch::News,
};

/// The number of the command among a host's programs.
pub(crate) const COMMAND: u32 = 1;

/// The status of a command that cannot be run.
const NOT_RUN: u8 = 127;

/// Turns the frames of a host into output and news.
#[derive(Debug)]
pub(crate) struct Listener {
    host: usize,
    stdout: Sink,
    stderr: Sink,
    news: Sender<News>,
}

impl Listener {
    pub(crate) fn new(host: usize, named: bool, news: Sender<News>) -> Self {
        Self {
            host,
            stdout: Sink::new(Stream::Stdout, host, named),
            stderr: Sink::new(Stream::Stderr, host, named),
            news,
        }
    }

    /// Takes one frame. Returns whether it needs more.
    pub(crate) fn hear(&mut self, number: u32, frame: Frame) -> bool {
        let host = self.host;
        match frame {
            Frame::Out(bytes) => self.check(|this| this.stdout.write(&bytes)),
            Frame::Err(bytes) => self.check(|this| this.stderr.write(&bytes)),
            Frame::Ended(status) => {
                let status = status as u8;
                self.check(|this| this.stdout.finish().and_then(|()| this.stderr.finish()))
                    && self.tell(News::Ended { host, status })
            }
            Frame::Ready => self.tell(News::Ready { host }),
            Frame::Beat | Frame::Began(_) => true,
            Frame::Failed(why) if number == HOST => self.lose(why),
            Frame::Failed(why) => {
                eprintln!("lab: {why}");
                let status = NOT_RUN;
                self.tell(News::Ended { host, status })
            }
            Frame::Start(_) | Frame::Tell(_) | Frame::Signal(_) | Frame::Quit => {
                self.lose("it sends what only we may")
            }
        }
    }

    /// Reports that the host is lost. Returns `false`.
    pub(crate) fn lose(&self, why: impl fmt::Display) -> bool {
        let (host, why) = (self.host, why.to_string());
        self.tell(News::Lost { host, why });
        false
    }

    /// Returns `false` if the main thread has ended.
    fn tell(&self, news: News) -> bool {
        self.news.send(news).is_ok()
    }

    fn check(&mut self, write: impl FnOnce(&mut Self) -> io::Result<()>) -> bool {
        let written = write(self).is_ok();
        if !written {
            self.tell(News::Unheard);
        }
        written
    }
}
