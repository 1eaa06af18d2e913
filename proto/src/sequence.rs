use super::violation::Violation;

/// The number of the next frame in each direction, modulo 2¹⁶.
///
/// A reliable connection loses and repeats nothing. A device or a driver that does so all the same
/// ends the connection by it: without the numbers a repeated message would be delivered twice.
#[derive(Debug)]
pub(super) struct Sequence {
    send: u16,
    receive: u16,
}

impl Sequence {
    /// Begins both directions at `start`: 0 but in tests.
    pub(super) const fn new(start: u16) -> Self {
        Self {
            send: start,
            receive: start,
        }
    }

    /// Numbers the next frame that is sent.
    pub(super) fn send(&mut self) -> u16 {
        let number = self.send;
        self.send = number.wrapping_add(1);
        number
    }

    /// Whether the next frame of the peer has this number.
    pub(super) const fn is_next(&self, number: u16) -> bool {
        number == self.receive
    }

    /// Counts a frame of the peer.
    pub(super) fn receive(&mut self, number: u16) -> Result<(), Violation> {
        if !self.is_next(number) {
            return Err(Violation::new(
                "sequence",
                number.into(),
                "the number behind that of the frame before",
            ));
        }
        self.receive = number.wrapping_add(1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_each_other_around_the_wrap() {
        let mut sequence = Sequence::new(u16::MAX - 1);
        for number in [u16::MAX - 1, u16::MAX, 0, 1] {
            assert_eq!(sequence.send(), number);
            assert_eq!(sequence.receive(number), Ok(()));
        }
    }

    #[test]
    fn a_repeated_and_a_lost_frame_are_violations() {
        let mut sequence = Sequence::new(0);
        assert_eq!(sequence.receive(0), Ok(()));
        for number in [0, 2, u16::MAX] {
            assert_eq!(sequence.receive(number).unwrap_err().field(), "sequence");
        }
        assert_eq!(sequence.receive(1), Ok(()), "a violation counts nothing");
    }
}
