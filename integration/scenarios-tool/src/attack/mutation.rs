//! Mutates bytes of the wire format: changes fields, truncates the bytes, or appends bytes.

use fastrand::Rng;

use super::wire::{BATCH, HEADER_LEN, RENDEZVOUS};

/// The lengths in bytes of consecutive fields.
type Lengths = &'static [usize];

const HEADER: Lengths = &[1, 1, 2, 4, 4, 4];
const DESCRIPTOR: Lengths = &[8, 8, 4, 4];
const HELLO: Lengths = &[4, 1, 1, 2, 2, 2, 4, 8, 4, 8];
/// The lengths of the fields that precede the hello in a TCP connection request.
const REQUEST: Lengths = &[4, 1, 1, 1, 1];
/// The lengths of the fields that precede the arguments in a PDU.
const PDU: Lengths = &[1, 1, 2, 4];

/// Changes one field of a frame.
pub(super) fn frame(bytes: &mut [u8], rng: &mut Rng) {
    let more = match bytes.first() {
        Some(&RENDEZVOUS) => DESCRIPTOR,
        // The payload of a batch begins with the length of the first message.
        Some(&BATCH) => &[4],
        _ => &[],
    };
    one_of([HEADER, more], bytes, rng);
}

/// Changes one field of a connection request, or of the hello in the request. Over RDMA, a request
/// consists of the hello.
pub(super) fn request(bytes: &mut [u8], is_rdma: bool, rng: &mut Rng) {
    one_of([if is_rdma { &[] } else { REQUEST }, HELLO], bytes, rng);
}

/// Changes one field of a PDU.
pub(super) fn pdu(bytes: &mut [u8], rng: &mut Rng) {
    let arguments: Lengths = match bytes.first() {
        Some(2) => &[8, 4],
        Some(3 | 4) => &[8, 4, 4],
        Some(5 | 6) => &[8, 4, 8, 8],
        Some(16) => &[4],
        Some(18) => &[8],
        Some(19) => &[4, 4],
        _ => &[],
    };
    one_of([PDU, arguments], bytes, rng);
}

/// Changes the address, the length or the key in the token that describes a memory region.
pub(super) fn token(bytes: &mut [u8], rng: &mut Rng) {
    one_of([&[8, 8, 4], &[]], bytes, rng);
}

/// Truncates the bytes, or appends random bytes.
pub(super) fn length(bytes: &mut Vec<u8>, rng: &mut Rng) {
    if rng.bool() {
        bytes.truncate(rng.usize(..=bytes.len()));
    } else {
        let more = rng.usize(1..=HEADER_LEN * 4);
        bytes.extend((0..more).map(|_| rng.u8(..)));
    }
}

fn one_of(lengths: [Lengths; 2], bytes: &mut [u8], rng: &mut Rng) {
    let lengths = lengths.concat();
    let chosen = rng.usize(0..lengths.len());
    let (at, len) = (lengths[..chosen].iter().sum::<usize>(), lengths[chosen]);
    if let Some(field) = bytes.get_mut(at..at + len) {
        let old = field
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte));
        let new = number(old, 8 * len as u32, rng);
        field.copy_from_slice(&new.to_be_bytes()[8 - len..]);
    }
}

/// Returns a random number of up to `bits` bits: usually a boundary value, or `old` with a small
/// change.
fn number(old: u64, bits: u32, rng: &mut Rng) -> u64 {
    let most = u64::MAX >> (64 - bits);
    let new = match rng.u8(0..10) {
        0 => 0,
        1 => 1,
        2 => old.wrapping_add(1),
        3 => old.wrapping_sub(1),
        4 => u64::MAX,
        5 => old ^ 1 << (bits - 1),
        6 => old.wrapping_add(4096),
        7 => old.wrapping_sub(4096),
        8 => u64::MAX / 2,
        _ => rng.u64(..),
    };
    new & most
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attack::wire::{Descriptor, Frame};

    #[test]
    fn change_one_number_reaches_each_field() {
        let descriptor = Descriptor {
            addr: 1,
            len: 2,
            rkey: 3,
            reserved: 0,
        };
        let payload = descriptor.bytes();
        let good = Frame {
            payload: &payload,
            ..Frame::control(RENDEZVOUS)
        };
        let good = good.bytes();
        let mut rng = Rng::with_seed(1);
        let mut changed = vec![false; good.len()];
        for _ in 0..2000 {
            let mut bytes = good.clone();
            frame(&mut bytes, &mut rng);
            assert_eq!(bytes.len(), good.len());
            for (at, flag) in changed.iter_mut().enumerate() {
                *flag |= bytes[at] != good[at];
            }
        }
        assert!(changed.into_iter().all(|flag| flag));
    }

    #[test]
    fn numbers_stay_within_their_bits() {
        let mut rng = Rng::with_seed(2);
        assert!((0..1000).all(|_| number(7, 16, &mut rng) <= u64::from(u16::MAX)));
    }
}
