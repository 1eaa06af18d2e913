use std::ops::Range;

use crate::{
    proto::{CONTROL_RECEIVES, CONTROL_SENDS, HEADER_LEN, Params, READS},
    transport::memory::WINDOWS,
};

/// The alignment of buffers in bytes. With this alignment, no two buffers share a cache line.
const ALIGN: usize = 64;

/// The maximum length in bytes of the pieces into which [`Layout::in_pieces`] divides the memory. A
/// piece with a single buffer may be longer.
const PIECE: usize = 256 << 10;

/// The sizes and numbers of a connection's buffers, and their locations in memory.
///
/// The receive buffers come first, then the send buffers. All have the same size. Each piece of
/// memory contains the same number of buffers, a power of two, except for the last piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    size: usize,
    /// The number of receives for the messages of the receive window and for control frames.
    recv_count: u32,
    /// Whether the receive buffers are shared. Shared buffers are not part of the connection's
    /// memory.
    shared: bool,
    send_count: u32,
    /// The maximum number of memory windows in use at a time. Each memory window needs two slots in
    /// the send queue: one for its bind and one for its invalidation.
    windows: u32,
    /// The base-2 logarithm of the number of buffers in a piece.
    piece: u32,
}

impl Layout {
    /// Computes the layout of the buffers for `params`, in one piece of memory. The peer's eager
    /// size is not known yet, so the send buffers get the length of the receive buffers. This
    /// length suffices, because both sides use the smaller of their eager sizes.
    pub(crate) fn new(params: &Params) -> Self {
        Self {
            size: (HEADER_LEN + params.eager_size as usize).next_multiple_of(ALIGN),
            recv_count: u32::from(params.window) + CONTROL_RECEIVES,
            shared: params.shared,
            send_count: params.send_slots + READS + CONTROL_SENDS,
            windows: 0,
            piece: u32::BITS - 1,
        }
    }

    /// Adds send queue slots for the work requests of memory windows.
    pub(crate) fn with_windows(self) -> Self {
        Self {
            windows: WINDOWS,
            ..self
        }
    }

    /// Returns whether the send queue has slots for the work requests of memory windows.
    pub(crate) const fn has_windows(&self) -> bool {
        self.windows > 0
    }

    /// Divides the memory into pieces of at most [`PIECE`] bytes. If a single buffer is longer,
    /// each buffer gets its own piece.
    pub(crate) fn in_pieces(self) -> Self {
        let piece = (PIECE / self.size).checked_ilog2().unwrap_or(0);
        Self { piece, ..self }
    }

    /// Returns the number of buffers.
    pub(super) const fn count(&self) -> u32 {
        self.send_buffer(self.send_count)
    }

    /// Returns the buffers in the same piece of memory as `buffer`.
    pub(super) fn same_piece(&self, buffer: u32) -> Range<u32> {
        let others = (1 << self.piece) - 1;
        buffer & !others..((buffer | others) + 1).min(self.count())
    }

    /// Returns the index of the piece of memory that contains this buffer.
    #[inline]
    pub(super) fn piece_of(&self, buffer: u32) -> usize {
        (buffer >> self.piece) as usize
    }

    /// Returns the offset in bytes of this buffer in its piece of memory.
    #[inline]
    pub(super) fn offset(&self, buffer: u32) -> usize {
        self.size * (buffer & ((1 << self.piece) - 1)) as usize
    }

    /// Returns the receive buffers from `first` to the last receive buffer in the same piece of
    /// memory.
    pub(crate) fn receives_from(&self, first: u32) -> Range<u32> {
        first..self.same_piece(first).end.min(self.recv_count)
    }

    /// Returns the depth of a send queue with slots for all send buffers, the requests of memory
    /// windows, and a drain marker.
    pub(crate) const fn send_depth(&self) -> u32 {
        self.send_count + 2 * self.windows + 1
    }

    /// Returns the depth of a receive queue with slots for all receive buffers and a drain marker.
    /// Returns 0 if the receive buffers are shared.
    pub(crate) const fn recv_depth(&self) -> u32 {
        if self.shared { 0 } else { self.recv_count + 1 }
    }

    /// Returns the maximum number of completions in the completion queue.
    pub(crate) fn completions(&self) -> u32 {
        self.send_count + 2 * self.windows + self.recv_count + 2
    }

    /// Returns the index of the buffer for a slot of the send ring.
    pub(crate) const fn send_buffer(&self, slot: u32) -> u32 {
        let receives = if self.shared { 0 } else { self.recv_count };
        receives + slot
    }

    /// Returns the length of each buffer in bytes.
    pub(crate) const fn size(&self) -> usize {
        self.size
    }

    pub(crate) const fn recv_count(&self) -> u32 {
        self.recv_count
    }

    pub(crate) const fn send_count(&self) -> u32 {
        self.send_count
    }

    /// Returns true if the receive buffers are shared. Shared buffers are not part of the
    /// connection's memory.
    pub(crate) const fn is_shared(&self) -> bool {
        self.shared
    }
}

const _: () = assert!(HEADER_LEN <= ALIGN);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::Config, transport::EngineLimits, transport_choice::Transport};

    /// Checks the numbers in the table in the documentation of [`Config`].
    #[test]
    fn documentation_states_connections_per_lock_limit() {
        let documentation = include_str!("../../config.rs");
        let default = Config::default().sizes(Transport::Rdma);
        let defaults = (
            default.receive_window,
            default.send_depth,
            default.eager_size,
        );
        for (window, depth, eager) in [
            defaults,
            (64, 64, 16 << 10),
            (32, 32, 8 << 10),
            (16, 16, 4 << 10),
            (8, 8, 1 << 10),
        ] {
            let config = Config {
                receive_window: Some(window),
                send_depth: Some(depth),
                eager_size: Some(eager),
                ..Config::default()
            };
            let name = if (window, depth, eager) == defaults {
                "the default: "
            } else {
                ""
            };
            let layout = Layout::new(&config.params(Transport::Rdma));
            let bytes = layout.size() * layout.same_piece(0).len();
            let bytes = bytes.next_multiple_of(4096) as u64;
            let fit = [64 << 10, 8 << 20, 64 << 20, 1 << 30]
                .map(|limit| (limit - EngineLimits::of(u64::MAX, limit).pinned) / bytes);
            let kib = eager >> 10;
            let [first, second, third, fourth] = fit;
            let row = format!(
                "/// | {name}{window}, {depth}, {kib} KiB | {bytes} | {first} | {second} | {third} \
                 | {fourth} |\n"
            );
            assert!(
                documentation.contains(&row),
                "config.rs must contain this row: {row}"
            );
        }
    }

    fn layout(size: usize) -> Layout {
        Layout {
            size,
            recv_count: 3,
            shared: false,
            send_count: 2,
            windows: 0,
            piece: u32::BITS - 1,
        }
    }

    /// Returns the number of buffers in each piece of memory.
    fn pieces(layout: Layout) -> Vec<usize> {
        let mut pieces: Vec<_> = (0..layout.count())
            .map(|it| layout.same_piece(it))
            .collect();
        pieces.dedup();
        assert!(pieces.windows(2).all(|pair| pair[0].end == pair[1].start));
        pieces.iter().map(Range::len).collect()
    }

    #[test]
    fn pieces_hold_all_buffers_once() {
        assert_eq!(pieces(layout(80 << 10)), [5]);
        assert_eq!(pieces(layout(128).in_pieces()), [5]);
        assert_eq!(pieces(layout(80 << 10).in_pieces()), [2, 2, 1]);
        assert_eq!(pieces(layout(PIECE + 64).in_pieces()), [1; 5]);
    }

    #[test]
    fn windows_add_slots_but_no_buffers() {
        let without = layout(80 << 10);
        let with = without.with_windows();
        assert_eq!(with.send_depth(), without.send_depth() + 16);
        assert_eq!(with.completions(), without.completions() + 16);
        assert_eq!(with.count(), without.count());
    }

    #[test]
    fn send_buffers_are_no_receives() {
        let own = layout(80 << 10).in_pieces();
        assert_eq!(own.receives_from(0), 0..2);
        assert_eq!(own.receives_from(2), 2..3);
        assert_eq!(own.receives_from(3), 3..3);
        assert_eq!(own.send_buffer(0), 3);
        let shared = Layout {
            shared: true,
            ..own
        };
        assert_eq!(
            shared.send_buffer(0),
            0,
            "shared receives must use no memory of the connection"
        );
        assert_eq!(pieces(shared), [2]);
    }
}
