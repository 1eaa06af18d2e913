//! Changes numbers and lengths of bytes on the wire.

use fastrand::Rng;

use super::wire::{HEADER_LEN, RENDEZVOUS};

/// The place and the length in bytes of each number.
type Fields = &'static [(usize, usize)];

const HEADER: Fields = &[(0, 1), (1, 1), (2, 2), (4, 4), (8, 4), (12, 4)];
const DESCRIPTOR: Fields = &[(16, 8), (24, 8), (32, 4), (36, 4)];
/// The length of the first message of a batch.
const BATCH: Fields = &[(16, 4)];
const HELLO: Fields = &[
    (0, 4),
    (4, 1),
    (5, 1),
    (6, 2),
    (8, 2),
    (10, 2),
    (12, 4),
    (16, 8),
    (24, 4),
    (28, 8),
];
/// The request of a TCP connection, with the hello behind it.
const REQUEST: Fields = &[(0, 4), (4, 1), (5, 1), (6, 1), (7, 1)];
/// Before the arguments of each PDU.
const PDU: Fields = &[(0, 1), (1, 1), (2, 2), (4, 4)];

/// The kind of a frame with several messages.
const BATCH_KIND: u8 = 17;

/// Changes one number of a frame.
pub(super) fn frame(bytes: &mut [u8], rng: &mut Rng) -> String {
    let more = match bytes.first() {
        Some(&RENDEZVOUS) => DESCRIPTOR,
        Some(&BATCH_KIND) => BATCH,
        _ => &[],
    };
    one_of(&[HEADER, more], 0, bytes, rng)
}

/// Changes one number of a hello that begins at `at`.
pub(super) fn hello(bytes: &mut [u8], at: usize, rng: &mut Rng) -> String {
    one_of(&[HELLO], at, bytes, rng)
}

/// Changes one number of the request of a TCP connection.
pub(super) fn request(bytes: &mut [u8], rng: &mut Rng) -> String {
    one_of(&[REQUEST], 0, bytes, rng)
}

/// Changes one number of a PDU.
pub(super) fn pdu(bytes: &mut [u8], rng: &mut Rng) -> String {
    let arguments: Fields = match bytes.first() {
        Some(2) => &[(8, 8), (16, 4)],
        Some(3) => &[(8, 8), (16, 4), (20, 4)],
        Some(4) => &[(8, 8), (16, 4), (20, 4)],
        Some(5 | 6) => &[(8, 8), (16, 4), (20, 8), (28, 8)],
        Some(16) => &[(8, 4)],
        Some(18) => &[(8, 8)],
        Some(19) => &[(8, 4), (12, 4)],
        _ => &[],
    };
    one_of(&[PDU, arguments], 0, bytes, rng)
}

/// Changes one number of a token for memory.
pub(super) fn token(bytes: &mut [u8], rng: &mut Rng) -> String {
    one_of(&[&[(0, 8), (16, 4)]], 0, bytes, rng)
}

/// Cuts the bytes, or adds some.
pub(super) fn length(bytes: &mut Vec<u8>, rng: &mut Rng) -> String {
    let before = bytes.len();
    if rng.bool() {
        bytes.truncate(rng.usize(..=before));
    } else {
        let more = rng.usize(1..=HEADER_LEN * 4);
        bytes.extend((0..more).map(|_| rng.u8(..)));
    }
    format!("{} bytes instead of {before}", bytes.len())
}

fn one_of(tables: &[Fields], offset: usize, bytes: &mut [u8], rng: &mut Rng) -> String {
    let count = tables.iter().map(|table| table.len()).sum();
    let chosen = rng.usize(0..count);
    let field = tables.iter().copied().flatten().nth(chosen);
    let (at, len) = *field.expect("it is one of them");
    let Some(field) = bytes.get_mut(offset + at..offset + at + len) else {
        return "nothing changed".to_owned();
    };
    let old = field
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte));
    let new = number(old, 8 * len as u32, rng);
    field.copy_from_slice(&new.to_be_bytes()[8 - len..]);
    format!("byte {at}: {:#x} instead of {old:#x}", new)
}

/// Another number of this many bits, mostly one at a bound.
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
