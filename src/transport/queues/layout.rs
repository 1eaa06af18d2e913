use crate::proto::{CONTROL_RECEIVES, CONTROL_SENDS, HEADER_LEN, Params, READS};

/// Buffers start on cache lines of their own, so that the device and two threads never share one.
const ALIGN: usize = 64;

/// Where the buffers lie in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    recv_size: usize,
    /// How many receives may complete before any is posted again.
    recv_count: u32,
    /// Whether the receive buffers are not in the region.
    shared: bool,
    send_size: usize,
    send_count: u32,
}

impl Layout {
    /// The buffers that `params` ask for. Send buffers have the size of our own receive buffers:
    /// the peer's limit is not known before it answers, and a longer message than that is refused.
    pub(crate) fn new(params: &Params) -> Self {
        let size = (HEADER_LEN + params.eager_size as usize).next_multiple_of(ALIGN);
        Self {
            recv_size: size,
            recv_count: u32::from(params.window) + CONTROL_RECEIVES,
            shared: params.shared,
            send_size: size,
            send_count: params.send_slots + READS + CONTROL_SENDS,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.send_offset(self.send_count)
    }

    /// The depth of the send queue that holds all buffers and a drain marker.
    pub(crate) const fn send_depth(&self) -> u32 {
        self.send_count + 1
    }

    /// The depth of the receive queue that holds all buffers and a drain marker.
    pub(crate) const fn recv_depth(&self) -> u32 {
        if self.shared { 0 } else { self.recv_count + 1 }
    }

    /// How many completions can be in the completion queue at once.
    pub(crate) fn completions(&self) -> u32 {
        self.send_count + self.recv_count + 2
    }

    pub(crate) const fn recv_offset(&self, buffer: u32) -> usize {
        self.recv_size * buffer as usize
    }

    pub(crate) const fn send_offset(&self, slot: u32) -> usize {
        let receives = if self.shared { 0 } else { self.recv_count };
        self.recv_size * receives as usize + self.send_size * slot as usize
    }

    pub(crate) const fn recv_size(&self) -> usize {
        self.recv_size
    }

    pub(crate) const fn recv_count(&self) -> u32 {
        self.recv_count
    }

    pub(crate) const fn send_size(&self) -> usize {
        self.send_size
    }

    pub(crate) const fn send_count(&self) -> u32 {
        self.send_count
    }

    /// Whether the receive buffers are not in the region.
    pub(crate) const fn is_shared(&self) -> bool {
        self.shared
    }
}

const _: () = assert!(HEADER_LEN <= ALIGN);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::Config, transport::EngineLimits, transport_kind::TransportKind};

    /// The table in the documentation of [`Config`] is what this comes to.
    #[test]
    fn the_documentation_says_how_many_connections_fit_the_lock_limit() {
        let documentation = include_str!("../../config.rs");
        let default = Config::default();
        let defaults = (
            default.receive_window,
            default.send_depth,
            default.params(TransportKind::Rdma).eager_size,
        );
        for (window, depth, eager) in [
            defaults,
            (64, 64, 16 << 10),
            (32, 32, 8 << 10),
            (16, 16, 4 << 10),
            (8, 8, 1 << 10),
        ] {
            let config = Config {
                receive_window: window,
                send_depth: depth,
                eager_size: Some(eager),
                ..Config::default()
            };
            let name = if (window, depth, eager) == defaults {
                "the default: "
            } else {
                ""
            };
            let bytes = Layout::new(&config.params(TransportKind::Rdma))
                .bytes()
                .next_multiple_of(4096) as u64;
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

    #[test]
    fn buffers_do_not_overlap() {
        let layout = Layout {
            recv_size: 128,
            recv_count: 3,
            shared: false,
            send_size: 192,
            send_count: 2,
        };
        assert_eq!(layout.recv_offset(2) + 128, layout.send_offset(0));
        assert_eq!(layout.send_offset(1) + 192, layout.bytes());
        let layout = Layout {
            shared: true,
            ..layout
        };
        assert_eq!(layout.send_offset(0), 0, "receives are elsewhere");
    }
}
