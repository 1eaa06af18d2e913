//! Writes to the peer's memory, and reads from this side's memory.

use std::io;

use rdma_verbs::verbs::{Inline, Payload, RemoteAddr, Sge};

use super::{CLOSING, End, Link, OTHER, TABLE};
use crate::wire::{Immediate, Window};

/// The maximum number of bytes in one write to the peer's memory.
const CHUNK: usize = 64 << 10;

impl Link {
    /// Writes as many bytes as possible without waiting. Returns the number of written bytes, or
    /// `None` if no byte could be written.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Option<io::Result<usize>> {
        if let Some(error) = self.error() {
            return Some(Err(error));
        }
        if !self.writable {
            let text = "this side has shut down writing";
            return Some(Err(io::Error::new(io::ErrorKind::BrokenPipe, text)));
        }
        let mut written = 0;
        while self.is_established() && self.free > 0 && written < bytes.len() {
            match self.write_piece(&bytes[written..]) {
                Ok(0) => break,
                Ok(len) => written += len,
                Err(error) => {
                    self.lose(error.to_string());
                    return Some(Err(error));
                }
            }
        }
        (written > 0 || bytes.is_empty()).then_some(Ok(written))
    }

    fn write_piece(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(peer) = &mut self.peer else {
            return Ok(0);
        };
        let Some(mut window) = peer.sending.room(bytes.len().min(CHUNK)) else {
            return Ok(0);
        };
        let range = if window.length as usize <= self.inline {
            0..0
        } else {
            match self.ring.allocate(window.length as usize) {
                Some(range) => range,
                None => return Ok(0),
            }
        };
        let remote = RemoteAddr {
            addr: window.addr,
            rkey: window.rkey,
        };
        let payload: Payload<'_> = if range.is_empty() {
            Inline(&bytes[..window.length as usize]).into()
        } else {
            self.outgoing.copy_in(range.start, &bytes[..range.len()]);
            window.length = range.len() as u32;
            Sge::new(&self.outgoing, range.clone()).into()
        };
        let immediate = Immediate::Data(window.length).encode();
        let freed = range.len() as u64;
        let write = Some((payload, remote));
        self.posted += self.notification.post(&self.qp, freed, write, immediate)?;
        self.free -= 1;
        peer.sending.wrote(window.length);
        Ok(window.length as usize)
    }

    /// Reads bytes that have arrived. Returns the number of bytes read, which is 0 at the end of
    /// the stream. Returns `None` if the program must wait for the peer to send bytes.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> Option<io::Result<usize>> {
        let mut len = 0;
        loop {
            let range = self.receiving.readable(into.len() - len);
            if range.is_empty() {
                break;
            }
            self.incoming
                .copy_out(range.start, &mut into[len..len + range.len()]);
            len += range.len();
            self.receiving.read(range.len());
            // This read has freed space in the ring, so an update for the peer may be due.
            self.update();
        }
        if len > 0 || into.is_empty() || !self.readable {
            return Some(Ok(len));
        }
        match &self.end {
            None => None,
            Some(End::Disconnected) => Some(Ok(0)),
            Some(End::Lost(..)) => self.error().map(Err),
        }
    }

    /// Sends all updates of credits and windows that are due now.
    pub(crate) fn update(&mut self) {
        while self.is_established() && self.end.is_none() && self.free_control > CLOSING {
            let Some(peer) = &self.peer else { return };
            let Some(update) = self.receiving.update() else {
                return;
            };
            let immediate = Immediate::Credits(update.limit).encode();
            let mut remote = peer.table;
            let mut piece = 0..0;
            if let Some((range, table_index)) = update.window {
                let bytes = self.window(range.start).to_bytes(peer.big_endian);
                let offset = table_index as usize * Window::LEN;
                // The buffer can be reused: the peer has filled the previous window at this index,
                // so the write that announced that window has completed.
                piece = TABLE + offset..TABLE + offset + Window::LEN;
                self.table.copy_in(piece.start, &bytes);
                remote.addr = remote.addr.wrapping_add(offset as u64);
            }
            let write = (!piece.is_empty()).then(|| (Sge::new(&self.table, piece).into(), remote));
            match self.notification.post(&self.qp, OTHER, write, immediate) {
                Ok(posted) => {
                    self.free_control -= 1;
                    self.posted += posted;
                }
                Err(error) => return self.lose(error.to_string()),
            }
        }
    }
}
