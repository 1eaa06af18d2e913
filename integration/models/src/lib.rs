//! Runs who polls a connection through all interleavings, and all that weak memory allows:
//! `cargo test --manifest-path integration/models/Cargo.toml`. It compiles the sources of
//! `src/poll` themselves, with a system of its own in place of the kernel's.
//!
//! The system is one connection: a device that completes work, the engine's thread, and threads of
//! an application. A sleep ends only by a wake-up, so a lost wake-up is a deadlock, which the
//! checker reports. Time passes at once: the engine looks again as soon as it can, which is the
//! least patience that it can have.
#![cfg(test)]
// The sources have more than one model uses.
#![allow(dead_code, unused_imports)]

macro_rules! error {
    ($($line:tt)+) => { panic!($($line)+) };
}

mod connection;
mod poll;
mod sync;
mod system;
mod waiting;

// What the sources name of the crate that they belong to.

mod config {
    use std::time::Duration;

    #[derive(Clone, Copy, Debug)]
    pub(crate) enum Polling {
        Adaptive { spin: Duration },
        Busy,
        Event,
    }
}

mod os {
    pub(crate) mod foreign {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct Panicked;

        pub(crate) fn call<T>(code: impl FnOnce() -> T) -> Result<T, Panicked> {
            Ok(code())
        }

        pub(crate) fn call_once(code: impl FnOnce()) {
            code();
        }
    }
}

mod status {
    pub(crate) use crate::system::OsError;
}

mod transport {
    pub(crate) use crate::system::{Answers, CompletionEvents};
}
