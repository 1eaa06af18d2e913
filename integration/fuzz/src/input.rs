/// The unread part of a fuzz input. Reading past the end of the input yields zeros.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn take<const N: usize>(&mut self) -> [u8; N] {
        let here = self.split(N);
        let mut bytes = [0; N];
        bytes[..here.len()].copy_from_slice(here);
        bytes
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let [byte] = self.take();
        byte
    }

    pub(crate) fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    pub(crate) fn word(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }

    /// Reads a length from one byte, modulo 64. Then reads and returns that many bytes, or fewer at
    /// the end of the input.
    pub(crate) fn bytes(&mut self) -> &'a [u8] {
        let len = self.byte() % 64;
        self.split(len.into())
    }

    fn split(&mut self, len: usize) -> &'a [u8] {
        let (here, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        here
    }
}
