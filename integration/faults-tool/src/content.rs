use fastrand::Rng;
use toolbox::{Side, pattern};

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
        let mut bytes = Vec::new();
        bytes.extend(u32::from(last).to_le_bytes());
        bytes.extend(self.connection.to_le_bytes());
        bytes.extend(number.to_le_bytes());
        bytes.extend(pattern(id, self.len(id)));
        bytes
    }

    /// Compares a message with what it has to be, and says whether it is the last one.
    pub(crate) fn check(&self, number: u64, message: &[u8]) -> Result<bool, String> {
        let last = message.first() == Some(&1);
        let expected = self.message(number, last);
        if *message == *expected {
            return Ok(last);
        }
        let differing = message.iter().zip(&expected).filter(|(a, b)| a != b);
        Err(format!(
            "message {number} of {} bytes is another one: {} bytes came, {} of them differ, and they begin with {:?}",
            expected.len(),
            message.len(),
            differing.count(),
            &message[..message.len().min(HEADER)]
        ))
    }

    fn id(&self, number: u64) -> u64 {
        let side = [self.seed, self.connection.into(), self.from as u64];
        side.iter()
            .fold(number, |state, part| Rng::with_seed(state ^ part).u64(..))
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
