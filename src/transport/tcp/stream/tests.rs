use std::{
    io::{IoSlice, Write},
    os::unix::net::UnixStream,
};

use super::*;
use crate::{
    os::Unshared,
    proto::{HEADER_LEN, NextFragment, tcp::Pdu},
    transport::tcp::receive_queue::Receive,
};

/// Returns an open stream, and the socket of its peer.
fn open_stream() -> (Arc<Stream>, UnixStream) {
    let (socket, peer) = UnixStream::pair().unwrap();
    socket.set_nonblocking(true).unwrap();
    let stream = Stream::new(
        Socket::of_connect(Unshared::new(socket.into())),
        Domain::default(),
        Arc::default(),
        true,
    );
    stream.reach(Phase::Open);
    (stream, peer)
}

#[test]
fn stream_fails_without_memory_for_rest_of_frame() {
    let (stream, _peer) = open_stream();
    let payload = vec![7; 4 << 20];
    let frame = Frame {
        header: &[0; HEADER_LEN],
        payload: &[IoSlice::new(&payload)],
        len: HEADER_LEN + payload.len(),
    };
    let no_memory = || Err(OsError::new("mmap", libc::ENOMEM));
    // SAFETY: `no_memory` returns no memory.
    let posted = unsafe { stream.post_frame(WorkId::Send(0), frame, no_memory, true) };
    assert_eq!(posted, Err(OsError::new("mmap", libc::ENOMEM)));
    assert_eq!(stream.phase(), Phase::Failed);
    let mut completions = Vec::new();
    stream.poll(&mut completions, Answers::AtOnce);
    assert!(completions.is_empty(), "{completions:?}");
}

/// The length in bytes of the second fragment's payload: more than one call stages.
const PAYLOAD: usize = 40_000;

/// Returns the header of a Fragment.
fn header(sequence: u8, missing: usize) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    (header[0], header[3]) = (18, sequence);
    header[8..12].copy_from_slice(&(missing as u32).to_be_bytes());
    header
}

/// Returns a Fragment as the peer sends it.
fn fragment(sequence: u8, missing: usize, payload: &[u8]) -> Vec<u8> {
    let len = (HEADER_LEN + payload.len()) as u32;
    let pdu = Pdu::Send {
        signalled: false,
        len,
    };
    [pdu.emit().bytes(), &header(sequence, missing), payload].concat()
}

/// Polls the stream. Returns the receive buffer and the length of the frame that has arrived.
fn poll_frame(stream: &Stream, answers: Answers) -> (Polled, u32, u32) {
    let mut completions = Vec::new();
    let polled = stream.poll(&mut completions, answers);
    match completions[..] {
        [Done::Received { buffer, len }] => (polled, buffer, len),
        ref others => panic!("{polled:?} {others:?}"),
    }
}

#[test]
fn expected_fragment_is_received_into_its_message() {
    for (is_expected, waits) in [(true, false), (true, true), (false, false)] {
        let (stream, mut peer) = open_stream();
        let mut buffers = vec![vec![0; HEADER_LEN + PAYLOAD]; 3];
        for (number, buffer) in buffers.iter_mut().enumerate() {
            let to = Span {
                start: buffer.as_mut_ptr(),
                len: buffer.len(),
            };
            let id = WorkId::Recv(number as u32);
            stream.receives().post(Receive { id, to });
        }
        let payload: Vec<u8> = (0..PAYLOAD).map(|at| at as u8).collect();
        let first = fragment(8, 20 + PAYLOAD, &payload[..20]);
        let message = [first, fragment(9, PAYLOAD, &payload)].concat();
        peer.write_all(&message).unwrap();
        let answers = if waits {
            stream.reserve().unwrap().wait(|| false);
            Answers::MayWait
        } else {
            Answers::AtOnce
        };
        // The second fragment is not received before the first one was handled.
        let (polled, first, len) = poll_frame(&stream, answers);
        assert_eq!((polled, len as usize), (Polled::Paused, HEADER_LEN + 20));
        assert_eq!(buffers[first as usize][HEADER_LEN..][..20], payload[..20]);
        let mut memory = vec![0; PAYLOAD];
        if is_expected {
            let next = NextFragment::after(&header(8, 20 + PAYLOAD), 20).unwrap();
            let start = memory.as_mut_ptr();
            // SAFETY: the memory is not accessed before the frame was received.
            unsafe { stream.placement.expect(next, start, PAYLOAD) };
        }
        let (polled, second, len) = poll_frame(&stream, Answers::AtOnce);
        assert_eq!((polled, len as usize), (Polled::All, HEADER_LEN + PAYLOAD));
        assert_eq!(stream.placement.finish(second), is_expected);
        let (begin, rest) = buffers[second as usize].split_at(HEADER_LEN);
        assert_eq!(begin, header(9, PAYLOAD));
        let (filled, untouched) = match is_expected {
            true => (&memory[..], rest),
            false => (rest, &memory[..]),
        };
        assert!(filled == payload, "expected {is_expected}");
        assert!(untouched.iter().all(|byte| *byte == 0));
    }
}
