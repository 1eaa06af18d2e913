use fastrand::Rng;

use super::wire::{
    ABORT, BATCH, CLOSE, DATA, Descriptor, FAILURE, Frame, GRANT, HEADER_LEN, PING, PONG,
    RENDEZVOUS,
};

const FINISH: u8 = 9;

/// The receive window in an attacker's hello, in frames.
pub(super) const WINDOW: u16 = 16;

/// The maximum number of announced messages that the victim has not yet read.
const ANNOUNCED: u32 = 4;

/// The maximum payload of a data frame in bytes. Each service accepts this length.
const LONGEST: usize = 1000;

/// The attacker's counters. The fields of valid frames are derived from them.
#[derive(Debug, Default)]
pub(super) struct Session {
    pub(super) frames_sent: u16,
    data_sent: u32,
    /// The credit limit granted by the peer: the total number of data frames that this side is
    /// permitted to send.
    limit: u32,
    data_received: u32,
    announced: u32,
    /// The number of announced messages that the peer has read.
    read: u32,
    /// Whether a ping is still unanswered.
    pub(super) pinged: bool,
    finished: bool,
}

impl Session {
    /// Creates the counters. `hello` is the victim's hello, which contains the initial number of
    /// credits for data frames.
    pub(super) fn new(hello: &[u8]) -> Self {
        let word = |at: usize| Some(u16::from_be_bytes(*hello.get(at..)?.first_chunk()?));
        let credits = word(10).filter(|credits| *credits > 0);
        Self {
            limit: credits.or_else(|| word(8)).unwrap_or(0).into(),
            ..Self::default()
        }
    }

    fn frame(&mut self, kind: u8, arg: u32, payload: &[u8]) -> Vec<u8> {
        let frame = Frame {
            ahead: self.frames_sent,
            grant: u32::from(WINDOW).wrapping_add(self.data_received),
            arg,
            payload,
            ..Frame::control(kind)
        };
        self.frames_sent = self.frames_sent.wrapping_add(1);
        frame.bytes()
    }

    fn credits(&self) -> u32 {
        self.limit.wrapping_sub(self.data_sent)
    }

    /// Returns the next frame of a valid conversation. If the frame announces a large message, its
    /// payload is the descriptor `memory`.
    pub(super) fn next(&mut self, rng: &mut Rng, memory: Descriptor) -> Vec<u8> {
        let is_free = self.credits() > 0 && !self.finished;
        match rng.u8(0..40) {
            0..=3 if is_free && self.announced.wrapping_sub(self.read) < ANNOUNCED => {
                self.announce(memory)
            }
            4..=7 if is_free => self.batch(rng),
            8..=10 if !self.pinged => self.ping(),
            11..=12 => self.grant(),
            13 if !self.finished => {
                self.finished = true;
                self.frame(FINISH, 0, &[])
            }
            14 => self.frame(CLOSE, 0, &[]),
            15 => self.frame(ABORT, rng.u32(..), &[]),
            16 => self.frame(FAILURE, rng.u32(0..5), &[]),
            _ if is_free => {
                let payload: Vec<_> = (0..rng.usize(0..LONGEST)).map(|_| rng.u8(..)).collect();
                self.data(&payload)
            }
            _ => self.grant(),
        }
    }

    pub(super) fn data(&mut self, payload: &[u8]) -> Vec<u8> {
        self.data_sent = self.data_sent.wrapping_add(1);
        self.frame(DATA, 0, payload)
    }

    pub(super) fn announce(&mut self, memory: Descriptor) -> Vec<u8> {
        self.data_sent = self.data_sent.wrapping_add(1);
        self.announced = self.announced.wrapping_add(1);
        self.frame(RENDEZVOUS, 0, &memory.bytes())
    }

    fn batch(&mut self, rng: &mut Rng) -> Vec<u8> {
        let count = self.credits().min(rng.u32(1..8));
        let mut payload = Vec::new();
        for _ in 0..count {
            let len = rng.usize(0..LONGEST / 10);
            payload.extend((len as u32).to_be_bytes());
            payload.extend((0..len).map(|_| rng.u8(..)));
        }
        self.data_sent = self.data_sent.wrapping_add(count);
        self.frame(BATCH, 0, &payload)
    }

    pub(super) fn ping(&mut self) -> Vec<u8> {
        self.pinged = true;
        self.frame(PING, 0, &[])
    }

    pub(super) fn grant(&mut self) -> Vec<u8> {
        self.frame(GRANT, 0, &[])
    }

    /// Updates the counters after a frame from the victim. Returns the answer that the protocol
    /// requires, if any.
    pub(super) fn take(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        if frame.len() < HEADER_LEN {
            return None;
        }
        let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|byte| frame[at + byte]));
        self.limit = word(4);
        match frame[0] {
            PING => return Some(self.frame(PONG, 0, &[])),
            PONG => self.pinged = false,
            DATA | RENDEZVOUS => self.data_received = self.data_received.wrapping_add(1),
            BATCH => {
                let mut rest = &frame[HEADER_LEN..];
                while let Some((len, more)) = rest.split_first_chunk() {
                    self.data_received = self.data_received.wrapping_add(1);
                    let len = u32::from_be_bytes(*len) as usize;
                    rest = more.get(len..).unwrap_or_default();
                }
            }
            _ => {}
        }
        if frame[0] != ABORT && frame[0] != FAILURE {
            self.read = word(12);
        }
        None
    }
}
