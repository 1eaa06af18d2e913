use std::{ops::Deref, thread};

use crate::{Lab, Watchdog};

/// How many seconds of an idle machine a test may take. Tests take a tenth of it.
const SECONDS: u64 = 300;

/// What a device test stands on. It ends the program when the test hangs, and fails the
/// test that leaves its peer without a receive (RNR NAK), which it finds out when it is dropped.
#[derive(Debug)]
pub struct DeviceTest {
    lab: Lab,
    /// The device's count of RNR NAKs at the start, where there may be none.
    rnr_naks: Option<u64>,
    _watchdog: Watchdog,
}

impl DeviceTest {
    /// For a test of connections that have credits, so that no receiver is ever without a receive.
    ///
    /// # Panics
    ///
    /// Without a device.
    #[must_use]
    #[track_caller]
    pub fn start() -> Self {
        Self::within(SECONDS)
    }

    /// The same, for a test that takes that many seconds of an idle machine, at the most.
    ///
    /// # Panics
    ///
    /// Without a device.
    #[must_use]
    #[track_caller]
    pub fn within(seconds: u64) -> Self {
        let lab = Lab::get();
        Self {
            rnr_naks: Some(lab.rnr_naks()),
            lab,
            _watchdog: Watchdog::new(seconds),
        }
    }

    /// For a test that sends as it likes.
    ///
    /// # Panics
    ///
    /// Without a device.
    #[must_use]
    #[track_caller]
    pub fn without_credits() -> Self {
        Self {
            lab: Lab::get(),
            rnr_naks: None,
            _watchdog: Watchdog::new(SECONDS),
        }
    }
}

impl Deref for DeviceTest {
    type Target = Lab;

    fn deref(&self) -> &Lab {
        &self.lab
    }
}

impl Drop for DeviceTest {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        if let Some(before) = self.rnr_naks {
            assert_eq!(
                self.lab.rnr_naks(),
                before,
                "a receiver was without a receive, as the device counts it"
            );
        }
    }
}
