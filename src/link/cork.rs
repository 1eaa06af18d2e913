use std::io::IoSlice;

/// Bytes that were written while there was no room. They leave together, in one message that is not
/// large, as soon as there is, whichever thread finds out: no write waits for another to push it.
#[derive(Debug, Default)]
pub(super) struct Cork {
    /// Kept when it is empty, so that joining allocates nothing.
    bytes: Vec<u8>,
}

impl Cork {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Lets bytes of these parts join, up to `longest` in all. Returns how many did.
    pub(super) fn join(&mut self, parts: &[IoSlice<'_>], longest: usize) -> usize {
        let before = self.bytes.len();
        if before == 0 {
            self.bytes.reserve_exact(longest);
        }
        for part in parts {
            let room = longest.saturating_sub(self.bytes.len());
            self.bytes.extend_from_slice(&part[..part.len().min(room)]);
        }
        self.bytes.len() - before
    }

    /// Takes the bytes out, to send them.
    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Takes the memory back in which they were.
    pub(super) fn reuse(&mut self, mut bytes: Vec<u8>) {
        bytes.clear();
        self.bytes = bytes;
    }
}
