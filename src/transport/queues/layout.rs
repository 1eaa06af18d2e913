use std::ops::Range;

use crate::{
    proto::{CONTROL_RECEIVES, Params, buffer_len},
    transport::memory::WINDOWS,
};

/// The maximum length in bytes of a piece of memory with several buffers.
const PIECE: usize = 256 << 10;

/// The sizes and numbers of a connection's buffers, and their locations in memory.
///
/// The receive buffers come first, then the slots of the send ring. A frame that is sent occupies
/// the memory of one or several consecutive slots. Behind the last slot is memory for a frame that
/// begins in that slot, and also occupies the first slots of the ring. Each piece of memory
/// contains the same number of buffers, a power of two, except for the last piece. If a frame can
/// take several slots, there is one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    size: usize,
    /// The number of receives for the messages of the receive window and for control frames.
    recv_count: u32,
    /// Whether the receive buffers are shared, and therefore not part of this memory.
    shared: bool,
    /// The number of slots of the send ring.
    send_count: u32,
    /// The length in bytes of the memory of a slot.
    slot_len: usize,
    /// The maximum number of windows in use. Each window needs two slots in the send queue: one for
    /// its bind and one for its invalidation.
    windows: u32,
    /// The base-2 logarithm of the number of buffers in a piece.
    piece: u32,
}

impl Layout {
    /// Computes the layout of the buffers for `params`, in one piece of memory. No frame is longer
    /// than a receive buffer, because both sides use the smaller eager size.
    pub(crate) fn new(params: &Params) -> Self {
        Self {
            size: buffer_len(params.eager_size) as usize,
            recv_count: u32::from(params.window) + CONTROL_RECEIVES,
            shared: params.shared,
            send_count: params.ring_slots(),
            slot_len: params.slot_len as usize,
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

    /// Divides the memory into pieces of at most [`PIECE`] bytes, but at least one buffer each.
    ///
    /// # Panics
    ///
    /// Panics if a frame can take several slots, because their memory must be contiguous.
    pub(crate) fn in_pieces(self) -> Self {
        assert_eq!(
            self.slots_for(self.size),
            1,
            "each slot has room for each frame"
        );
        let piece = (PIECE / self.size).checked_ilog2().unwrap_or(0);
        Self { piece, ..self }
    }

    /// Returns the number of receive buffers and slots, with the memory behind the last slot.
    pub(super) fn count(&self) -> u32 {
        self.own_receives() + self.send_count + self.slots_for(self.size) - 1
    }

    /// Returns the number of receive buffers in this memory.
    const fn own_receives(&self) -> u32 {
        if self.shared { 0 } else { self.recv_count }
    }

    /// Returns the number of slots of a frame of `len` bytes with its header, as `SendRing` does.
    /// The cast is lossless, because a frame is at most 1 MiB long (`Config::check`).
    fn slots_for(&self, len: usize) -> u32 {
        len.div_ceil(self.slot_len).max(1) as u32
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
        self.len_of(self.same_piece(buffer).start..buffer)
    }

    /// Does the same as [`offset`](Self::offset) for a receive buffer.
    #[inline]
    pub(super) fn recv_offset(&self, buffer: u32) -> usize {
        self.size * (buffer & ((1 << self.piece) - 1)) as usize
    }

    /// Returns the length in bytes of the memory of consecutive buffers.
    pub(super) fn len_of(&self, buffers: Range<u32>) -> usize {
        let receives = self.own_receives();
        let sends = buffers.end.max(receives) - buffers.start.max(receives);
        let receives = buffers.end.min(receives) - buffers.start.min(receives);
        self.size * receives as usize + self.slot_len * sends as usize
    }

    /// Returns the receive buffers from `first` to the end of its piece of memory.
    pub(crate) fn receives_from(&self, first: u32) -> Range<u32> {
        first..self.same_piece(first).end.min(self.recv_count)
    }

    /// Returns the depth of a send queue with places for all slots, the requests of windows, and a
    /// drain marker. Each work request takes at least one slot.
    pub(crate) const fn send_depth(&self) -> u32 {
        self.send_count + 2 * self.windows + 1
    }

    /// Returns the depth of a receive queue with slots for all receive buffers and a drain marker.
    pub(crate) const fn recv_depth(&self) -> u32 {
        if self.shared { 0 } else { self.recv_count + 1 }
    }

    /// Returns the maximum number of completions in the completion queue. If the connection fails,
    /// each work request completes.
    pub(crate) fn completions(&self) -> u32 {
        self.send_count + 2 * self.windows + self.recv_count + 2
    }

    /// Returns the index of the buffer that begins the memory of a frame of `len` bytes. `slot` is
    /// the last slot of the frame.
    pub(crate) fn send_buffer(&self, slot: u32, len: usize) -> u32 {
        let first = slot + self.send_count + 1 - self.slots_for(len);
        self.own_receives() + first % self.send_count
    }

    /// Returns the length of a receive buffer in bytes.
    pub(crate) const fn size(&self) -> usize {
        self.size
    }

    pub(crate) const fn recv_count(&self) -> u32 {
        self.recv_count
    }

    pub(crate) const fn send_count(&self) -> u32 {
        self.send_count
    }

    /// Returns whether the receive buffers are shared, and therefore not part of this memory.
    pub(crate) const fn is_shared(&self) -> bool {
        self.shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::Config, transport::EngineLimits, transport_choice::Transport};

    /// Checks the results in the table of [`Config`]'s documentation.
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
            let bytes = layout.len_of(layout.same_piece(0));
            let bytes = bytes.next_multiple_of(4096) as u64;
            let fit = [64 << 10, 8 << 20, 64 << 20, 1 << 30]
                .map(|limit| (limit - EngineLimits::of(u64::MAX, limit).pinned) / bytes);
            let kib = eager >> 10;
            let [first, second, third, fourth] = fit;
            let row = format!(
                "/// | {name}{window}, {depth}, {kib} KiB | {bytes} | {first} | {second} | {third} \
                 | {fourth} |\n"
            );
            assert!(documentation.contains(&row), "{row}");
        }
    }

    fn layout(size: usize) -> Layout {
        Layout {
            size,
            recv_count: 3,
            shared: false,
            send_count: 2,
            slot_len: size,
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
    fn frames_occupy_consecutive_slots_in_memory() {
        let divided = Layout {
            size: 256,
            send_count: 10,
            slot_len: 64,
            ..layout(256)
        };
        let place = |slot, len| divided.offset(divided.send_buffer(slot, len));
        let first = 3 * 256;
        assert_eq!(
            (place(0, 1), place(0, 64), place(9, 0)),
            (first, first, first + 9 * 64)
        );
        assert_eq!((place(4, 65), place(4, 256)), (first + 3 * 64, first + 64));
        // A frame at the end of the ring takes memory behind the last slot.
        assert_eq!(
            (place(0, 65), place(2, 256)),
            (first + 9 * 64, first + 9 * 64)
        );
        assert_eq!(divided.len_of(divided.same_piece(0)), first + 13 * 64);
        assert_eq!(divided.send_depth(), 11);
    }

    #[test]
    fn windows_add_places_and_no_buffers() {
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
        assert_eq!(own.send_buffer(0, 1), 3);
        let shared = Layout {
            shared: true,
            ..own
        };
        assert_eq!(shared.send_buffer(0, 1), 0, "receives are elsewhere");
        assert_eq!(pieces(shared), [2]);
    }
}
