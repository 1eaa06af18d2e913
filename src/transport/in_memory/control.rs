use std::sync::Arc;

use super::{
    connection_manager::ConnectionManager,
    wire::{Side, Wire},
};

/// A handle that injects faults into a connection, for tests. After [`cut`](Self::cut) or
/// [`release`](Self::release), the caller must make the engine handle the connection's notices.
#[derive(Clone, Debug)]
pub(crate) struct WireControl {
    wire: Arc<Wire>,
    side: Side,
    manager: ConnectionManager,
}

impl WireControl {
    pub(super) fn new(wire: &Arc<Wire>, side: Side, manager: &ConnectionManager) -> Self {
        Self {
            wire: Arc::clone(wire),
            side,
            manager: manager.clone(),
        }
    }

    /// Ends the connection for both sides, as if the link had failed.
    pub(crate) fn cut(&self) {
        self.wire.disconnect(&self.manager);
    }

    /// Delays this side's work requests until [`release`](Self::release) is called.
    pub(crate) fn hold(&self) {
        self.wire.hold(self.side);
    }

    /// Carries out the delayed work requests. Later work requests are not delayed.
    pub(crate) fn release(&self) {
        self.wire.release(self.side);
    }

    /// Returns the number of this side's delayed work requests.
    pub(crate) fn held(&self) -> usize {
        self.wire.waiting(self.side)
    }
}
