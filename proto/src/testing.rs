//! Test harnesses: each function takes bytes and integers, and panics if the code violates the
//! protocol. The tests call these functions with many short inputs, and the fuzz targets call them
//! with arbitrary inputs.

#[cfg(test)]
use std::env;
use std::{collections::VecDeque, sync::Arc, time::Duration};

#[cfg(test)]
use proptest::test_runner::{Config, RngSeed};

use super::{
    Fragmentation, HEADER_LEN, PART_HEADER_LEN, Params, ReadDepth, SessionOffer,
    batch::{Batch, parts},
    control_messages::{ControlMessages, MAX_CONTROL_MESSAGE},
    credit::{RecvCredit, SendCredit},
    frame::{Descriptor, Header, Kind, Sequence},
    hello::{PRIVATE_DATA_MAX, REPLY_DATA_MAX},
};

/// Parses bytes as a frame. Checks that `parse_data` accepts the frame if and only if it is a valid
/// Data frame. Checks that the header of a valid frame serializes to the original bytes. Checks the
/// same for the payload if it is a valid batch or descriptor. Also checks the payload's length if
/// the frame's kind limits this length.
pub fn parse_frame(bytes: &[u8]) {
    let header = Header::parse(bytes);
    let is_data = |header: &Header| header.kind == Kind::Data;
    assert_eq!(Header::parse_data(bytes), header.ok().filter(is_data));
    let Ok(header) = header else {
        return;
    };
    let (emitted, payload) = bytes.split_at(HEADER_LEN);
    assert_eq!(header.emit(), emitted);
    match header.kind {
        Kind::Batch => parse_batch(payload),
        Kind::Rendezvous => {
            if let Ok(descriptor) = Descriptor::parse(bytes) {
                assert_eq!(descriptor.emit(), payload);
                assert!(descriptor.len > 0);
                assert!(descriptor.addr.checked_add(descriptor.len).is_some());
            }
        }
        Kind::Fragment => assert!((1..=header.len as usize).contains(&payload.len())),
        Kind::ControlMessage => assert!(payload.len() <= MAX_CONTROL_MESSAGE as usize),
        Kind::Request => assert!(payload.len() <= PRIVATE_DATA_MAX),
        Kind::Answer => assert!(payload.len() <= REPLY_DATA_MAX),
        Kind::Data | Kind::Control(_) => {}
    }
}

/// Parses bytes as the payload of a batch. Checks that a payload is accepted if and only if it is
/// not empty and its messages serialize to the same bytes.
pub fn parse_batch(payload: &[u8]) {
    let messages = || parts(payload).map(|(at, len)| &payload[at as usize..][..len as usize]);
    let length =
        |message: &[u8]| u32::try_from(message.len()).expect("the length must be below 4 GiB");
    let emitted: Vec<u8> = messages()
        .flat_map(|message| [&length(message).to_be_bytes(), message].concat())
        .collect();
    match Batch::parse(payload) {
        Ok(batch) => {
            assert_eq!(emitted, payload);
            let count = batch.count as usize;
            assert!(count > 0 && messages().count() == count);
            assert!(count * PART_HEADER_LEN <= payload.len());
            assert_eq!(messages().map(length).max(), Some(batch.longest));
        }
        Err(_) => assert!(payload.is_empty() || emitted != payload),
    }
}

/// Assigns sequence numbers to two sent frames, beginning with `start`. Then receives a frame with
/// the number `received`. Checks that the receiver accepts this frame if and only if `received` is
/// `start`.
pub fn number_frames(start: u16, received: u16) {
    let mut sequence = Sequence::new(start);
    assert_eq!(sequence.send(), start);
    assert_eq!(sequence.send(), start.wrapping_add(1));
    let is_next = received == start;
    assert_eq!(sequence.is_next(received), is_next);
    assert_eq!(sequence.receive(received).is_ok(), is_next);
    let next = start.wrapping_add(is_next.into());
    assert!(
        sequence.is_next(next),
        "only an accepted frame may advance the expected number"
    );
}

/// Sends messages in one direction and grants in the other, in the order that `steps` describes.
///
/// Checks that each message arrives within the granted credit and finds a posted receive, and that
/// at most two Grant frames are in flight. Also checks that more than half of the credits are
/// available after all messages have been released.
pub fn exchange_credit(window: u16, start: u32, steps: &[u8]) {
    let window = window.max(1);
    let mut exchange = Exchange {
        window: window.into(),
        sender: SendCredit::new(window, window, start),
        receiver: RecvCredit::new(window, window, start),
        in_flight: 0,
        grants: VecDeque::new(),
    };
    for step in steps {
        exchange.step(*step);
        exchange.check();
    }
    exchange.finish();
}

/// A simulated connection that carries messages in one direction and grants in the other.
struct Exchange {
    window: u32,
    sender: SendCredit,
    receiver: RecvCredit,
    /// The number of messages in flight.
    in_flight: u32,
    /// Grants in flight, oldest first. The flag is true if a Grant frame carries the grant.
    grants: VecDeque<(u32, bool)>,
}

impl Exchange {
    fn step(&mut self, step: u8) {
        match step % 6 {
            0 if self.sender.available() > 0 => {
                self.sender.take(1);
                self.in_flight += 1;
            }
            1 if self.in_flight > 0 => {
                self.in_flight -= 1;
                assert!(self.receiver.allows(1), "each message must have a credit");
                self.receiver.receive(1);
                self.grant_if_due();
            }
            2 if self.receiver.held() > 0 => {
                self.receiver.release(None);
                self.grant_if_due();
            }
            3 => {
                if let Some((limit, _)) = self.grants.pop_front() {
                    self.sender.granted(limit).expect("the grant must be valid");
                }
            }
            // A message in the other direction carries a grant.
            4 => self.grants.push_back((self.receiver.announce(), false)),
            5 => {
                self.receiver.stop_delaying_grants();
                self.grant_if_due();
            }
            _ => {}
        }
    }

    fn grant_if_due(&mut self) {
        if self.receiver.grant_due() {
            self.grants.push_back((self.receiver.announce(), true));
        }
    }

    fn check(&self) {
        let held = self.receiver.held();
        assert!(self.sender.available() <= self.window);
        assert!(
            self.in_flight + held <= self.window,
            "each message must have a posted receive"
        );
        assert_eq!(self.receiver.promised(), self.window);
        let own = self.grants.iter().filter(|(_, own)| *own).count();
        assert!(own <= 2, "the two receives for Grant frames must suffice");
    }

    /// Delivers all messages in flight, releases all received messages, and applies all grants.
    /// Then checks the remaining credit.
    fn finish(&mut self) {
        while self.in_flight > 0 || self.receiver.held() > 0 || !self.grants.is_empty() {
            for step in [1, 2, 3] {
                self.step(step);
                self.check();
            }
        }
        let left = self.sender.available();
        assert!(
            left > self.window / 2,
            "more than half of the credits must be available, but only {left} are"
        );
    }
}

/// Sends control messages in one direction and grants in the other, in the order that `steps`
/// describes. A step can also break the connection and resume the session.
///
/// Checks that each message is delivered once and in order. Checks that at most `window` messages
/// are in flight, and that at most `window` delivered messages wait for the application to take
/// them. Also checks that at most one Permit is in flight, and that the sender has credit after all
/// messages have been taken.
pub fn exchange_control_messages(window: u32, start: u32, steps: &[u8]) {
    let window = window.max(1);
    let mut sender = ControlMessages::starting_at(start, window);
    sender.set_longest(Some(MAX_CONTROL_MESSAGE));
    let mut exchange = ControlExchange {
        window,
        sender,
        receiver: ControlMessages::starting_at(start, window),
        messages: VecDeque::new(),
        grants: VecDeque::new(),
        sent: 0,
        delivered: 0,
    };
    for step in steps {
        exchange.step(*step);
        exchange.check();
    }
    exchange.finish();
}

/// A simulated connection that carries control messages in one direction and grants in the other.
struct ControlExchange {
    window: u32,
    sender: ControlMessages,
    receiver: ControlMessages,
    /// The messages in flight, oldest first: the number and the content of each.
    messages: VecDeque<(u32, Arc<[u8]>)>,
    /// The grants in flight, oldest first.
    grants: VecDeque<u32>,
    sent: u32,
    delivered: u32,
}

impl ControlExchange {
    fn step(&mut self, step: u8) {
        match step % 5 {
            0 if self.sender.available() > 0 => {
                let sent = self.sender.send(&self.sent.to_be_bytes());
                assert_eq!(sent, Ok(()), "a sender with credit must accept a message");
                self.sent += 1;
            }
            1 => {
                if let Some((number, message)) = self.messages.pop_front() {
                    let is_new = self
                        .receiver
                        .receive(number)
                        .expect("the number must be valid");
                    if is_new {
                        assert_eq!(
                            *message,
                            self.delivered.to_be_bytes(),
                            "each message must arrive once and in order"
                        );
                        self.delivered += 1;
                    }
                }
            }
            2 if self.receiver.untaken() > 0 => self.receiver.take(),
            3 => {
                if let Some(limit) = self.grants.pop_front() {
                    self.sender.granted(limit).expect("the grant must be valid");
                }
            }
            4 => {
                self.messages.clear();
                self.grants.clear();
                self.sender.resume();
                self.receiver.resume();
            }
            _ => {}
        }
        while let Some(message) = self.sender.post() {
            self.messages.push_back(message);
        }
        self.grants.extend(self.receiver.take_grant());
    }

    fn check(&self) {
        let window = self.window as usize;
        assert!(
            self.messages.len() <= window,
            "each message in flight must have a posted receive"
        );
        assert!(
            self.grants.len() <= 1,
            "the one receive for a Permit must suffice"
        );
        assert!(self.receiver.untaken() <= self.window);
        assert!(self.delivered <= self.sent);
    }

    /// Delivers all messages in flight, takes all delivered messages, and applies all grants. Then
    /// checks that no message is lost and that the sender has credit.
    fn finish(&mut self) {
        while !self.messages.is_empty() || self.receiver.untaken() > 0 || !self.grants.is_empty() {
            for step in [1, 2, 3] {
                self.step(step);
                self.check();
            }
        }
        assert_eq!(self.delivered, self.sent, "no message may be lost");
        assert!(self.sender.available() > 0, "the sender must have credit");
    }
}

/// A READ depth of 16 in both directions, which most devices support.
pub const BOTH_WAYS: ReadDepth = ReadDepth {
    outgoing: 16,
    incoming: 16,
};

/// Returns parameters with small sizes, so that a short test or input can reach every limit.
pub fn params() -> Params {
    Params {
        window: 4,
        shared: false,
        eager_size: 64,
        max_message: 8 << 20,
        large_memory: 4 << 20,
        longest_chunk: 1 << 20,
        read_timeout: Duration::from_secs(30),
        send_slots: 4,
        fragmentation: Fragmentation {
            max: 4,
            shortest_first: true,
        },
        completes_unsignalled: false,
        max_unsignalled: 64 << 10,
        delays_grants: true,
        connect_timeout: Duration::from_secs(5),
        setup_timeout: None,
        resolve_timeout: Duration::from_secs(2),
        retry_refused: false,
        close_timeout: Duration::from_secs(5),
        drain_timeout: Duration::from_secs(2),
        keepalive_interval: None,
        keepalive_timeout: Duration::from_secs(3),
        stream: false,
        takes_control_messages: true,
        held: 0,
        session: SessionOffer::None,
        stream_buffer: 4 << 20,
        engine: 0,
        number: 0,
    }
}

/// Returns a proptest configuration with this number of random cases. The cases are the same in
/// every run. The environment variables `PROPTEST_CASES` and `PROPTEST_RNG_SEED` override the
/// number and the seed.
#[cfg(test)]
pub(super) fn cases(cases: u32) -> Config {
    let of_environment = Config::default();
    Config {
        cases: match env::var_os("PROPTEST_CASES") {
            Some(_) => of_environment.cases,
            None => cases,
        },
        rng_seed: match of_environment.rng_seed {
            RngSeed::Random => RngSeed::Fixed(0x7264_6d73),
            fixed @ RngSeed::Fixed(_) => fixed,
        },
        failure_persistence: None,
        ..of_environment
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls `call` with each string of at most `longest` bytes from `alphabet`.
    fn for_each_string(alphabet: &[u8], longest: usize, call: &mut dyn FnMut(&[u8])) {
        fn extend(string: &mut Vec<u8>, alphabet: &[u8], more: usize, call: &mut dyn FnMut(&[u8])) {
            call(string);
            if more > 0 {
                for letter in alphabet {
                    string.push(*letter);
                    extend(string, alphabet, more - 1, call);
                    string.pop();
                }
            }
        }
        extend(&mut Vec::new(), alphabet, longest, call);
    }

    #[test]
    fn parse_each_short_frame() {
        let mut count = 0;
        // `rest` consists of the flags, the last byte of the length field, and the payload.
        for kind in 0..=u8::MAX {
            for_each_string(&[0, 1, 24], 5, &mut |rest| {
                let mut bytes = vec![kind];
                if let [flags, len, payload @ ..] = rest {
                    bytes.extend([*flags, 0, 1, 0, 0, 0, 1, 0, 0, 0, *len, 0, 0, 0, 0]);
                    bytes.extend(payload);
                } else {
                    bytes.extend(rest);
                }
                parse_frame(&bytes);
                count += usize::from(Header::parse(&bytes).is_ok());
            });
        }
        // The accepted frames are:
        //
        // - without payload: all kinds except Rendezvous and Fragment
        // - with one byte of payload: Data, Batch, ControlMessage, Request and Answer
        // - Fragments with length 1 and one byte of payload
        // - Fragments with length 24 and one to three bytes of payload
        assert_eq!(count, 15 + 5 * 3 + 3 + (3 + 9 + 27));
    }

    #[test]
    fn parse_each_descriptor_near_its_bounds() {
        let words = [0, 1, 24, u64::MAX - 24, u64::MAX - 1, u64::MAX];
        let mut count = 0;
        for (addr, len) in words
            .into_iter()
            .flat_map(|addr| words.map(|len| (addr, len)))
        {
            for (rkey, reserved) in [(0, 0), (u32::MAX, 0), (1, 1)] {
                let header = Header {
                    kind: Kind::Rendezvous,
                    sequence: 0,
                    grant: 0,
                    len: 24,
                    arg: 0,
                };
                let mut bytes = header.emit().to_vec();
                bytes.extend(Descriptor { addr, len, rkey }.emit());
                let last = bytes.len() - 1;
                bytes[last] = reserved;
                parse_frame(&bytes);
                let fits = len > 0 && addr.checked_add(len).is_some() && reserved == 0;
                assert_eq!(
                    Descriptor::parse(&bytes).is_ok(),
                    fits,
                    "{addr} {len} {reserved}"
                );
                count += usize::from(fits);
            }
        }
        assert!(count > 0);
    }

    #[test]
    fn parse_each_short_batch() {
        let mut count = 0;
        for_each_string(&[0, 1, 2, 255], 9, &mut |payload| {
            parse_batch(payload);
            count += usize::from(Batch::parse(payload).is_ok());
        });
        // The accepted payloads contain one message of 0, 1 or 2 bytes, or two messages with at
        // most one byte in total.
        assert_eq!(count, 1 + 4 + 16 + 1 + 4 + 4);
    }

    #[test]
    fn number_frames_from_each_start() {
        for start in [0, 1, 0x7fff, u16::MAX - 1, u16::MAX] {
            (0..=u16::MAX).for_each(|received| number_frames(start, received));
        }
    }

    #[test]
    fn exchange_control_messages_in_each_short_order() {
        for (window, start) in [(1, u32::MAX - 1), (2, u32::MAX)] {
            for_each_string(&[0, 1, 2, 3, 4], 9, &mut |steps| {
                exchange_control_messages(window, start, steps);
            });
        }
    }

    #[test]
    fn exchange_credit_in_each_short_order() {
        for (window, start) in [(1, 0), (2, u32::MAX - 1), (3, 0), (4, u32::MAX)] {
            for_each_string(&[0, 1, 2, 3, 4, 5], 7, &mut |steps| {
                exchange_credit(window, start, steps);
            });
        }
    }
}
