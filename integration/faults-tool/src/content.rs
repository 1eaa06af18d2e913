use fastrand::Rng;
use toolbox::{Side, check, pattern, random};

use crate::scenario::Talk;

/// What one side of a connection sends: lengths and bytes of its messages. The receiver makes them
/// anew to compare, so a message that is lost, repeated, moved, cut or changed shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content {
    pub(crate) seed: u64,
    pub(crate) connection: u32,
    pub(crate) from: Side,
    pub(crate) talk: Talk,
}

/// Before each message's own bytes: whether it is the last one, its connection, and its number.
const HEADER: usize = 16;

impl Content {
    /// A message's bytes.
    pub(crate) fn message(&self, number: u64, last: bool) -> Vec<u8> {
        let id = self.id(number);
        let mut bytes = self.header(number, last).to_vec();
        bytes.extend(pattern(id, self.len(id)));
        bytes
    }

    /// Compares a message with what it has to be, and says whether it is the last one.
    pub(crate) fn check(&self, number: u64, message: &[u8]) -> Result<bool, String> {
        let last = message.first() == Some(&1);
        let id = self.id(number);
        let (header, body) = message.split_at(message.len().min(HEADER));
        if *header != self.header(number, last) {
            let len = message.len();
            return Err(format!(
                "message {number} is another one, of {len} bytes, which begin with {header:?}"
            ));
        }
        check(id, self.len(id), body).map_err(|problem| format!("message {number}: {problem}"))?;
        Ok(last)
    }

    fn header(&self, number: u64, last: bool) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&u32::from(last).to_le_bytes());
        header[4..8].copy_from_slice(&self.connection.to_le_bytes());
        header[8..].copy_from_slice(&number.to_le_bytes());
        header
    }

    fn id(&self, number: u64) -> u64 {
        let side = self.from as u64;
        random(&[self.seed, self.connection.into(), side, number]).u64(..)
    }

    fn len(&self, id: u64) -> usize {
        let mut rng = Rng::with_seed(id);
        let small = |rng: &mut Rng| match rng.u32(..3) {
            0 => rng.usize(..200),
            1 => rng.usize(..4 << 10),
            _ => rng.usize(..(16 << 10) - HEADER),
        };
        let large = |rng: &mut Rng| rng.usize(20 << 10..1 << 20);
        match self.talk {
            Talk::Idle | Talk::Small => small(&mut rng),
            Talk::Large => large(&mut rng),
            Talk::Mixed | Talk::Operations => match rng.u32(..16) {
                0 => large(&mut rng),
                1..4 => rng.usize(16 << 10..64 << 10),
                _ => small(&mut rng),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTENT: Content = Content {
        seed: 7,
        connection: 3,
        from: Side::Client,
        talk: Talk::Mixed,
    };

    #[test]
    fn a_message_is_known_by_its_bytes() {
        for number in 0..50 {
            let last = number == 49;
            let mut message = CONTENT.message(number, last);
            assert_eq!(CONTENT.check(number, &message), Ok(last));
            assert!(CONTENT.check(number + 1, &message).is_err());
            let other = Content {
                from: Side::Server,
                ..CONTENT
            };
            assert!(other.check(number, &message).is_err());
            message.pop();
            assert!(CONTENT.check(number, &message).is_err());
        }
        assert!(CONTENT.check(0, &[]).is_err());
    }
}
