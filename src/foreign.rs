//! Runs code that is not this crate's: wakers of the application's tasks, and its logger.
//!
//! Foreign code may panic, block, or call back into this crate. Two rules keep that harmless:
//!
//! * No lock is held while it runs. A waker may poll its task at once, and a logger may send its
//!   line over a connection.
//! * [`call`] stops a panic, so that it ends neither the engine's thread nor a destructor. A waker
//!   that panics ends the connection that its task waits on, because that task may never be polled
//!   again. A logger that panics loses the line that it was given and nothing else: no connection
//!   is at fault, and a second line about the first would meet the same logger.
//!
//! A program that is built with `panic = "abort"` ends at the first panic, as always.
//!
//! `clone` and `drop` of a waker may also run inside of a poll of the task that owns the waker.
//! There a panic passes to the caller of that poll.

use std::{
    fmt,
    mem::ManuallyDrop,
    panic::{AssertUnwindSafe, Location, catch_unwind},
};

use log::{Level, Record, STATIC_MAX_LEVEL};

/// Foreign code panicked. The panic hook has printed the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Panicked;

/// Runs foreign code. The caller holds no lock.
pub(crate) fn call<T>(code: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(code)).map_err(|payload| {
        // The payload is foreign too: its drop may panic. That second payload is leaked.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(payload)));
        let _leaked = dropped.map_err(ManuallyDrop::new);
        Panicked
    })
}

/// Has the logger write a line, if it takes lines of this level. The caller holds no lock.
#[track_caller]
pub(crate) fn log(level: Level, target: &str, text: fmt::Arguments<'_>) {
    if level > STATIC_MAX_LEVEL || level > log::max_level() {
        return;
    }
    let place = Location::caller();
    // A panic loses the line.
    let _ = call(|| {
        let line = Record::builder()
            .level(level)
            .target(target)
            .module_path(Some(target))
            .file_static(Some(place.file()))
            .line(Some(place.line()))
            .args(text)
            .build();
        log::logger().log(&line);
    });
}

/// Defines macros with the names and arguments of those of the crate `log`. The lint
/// `disallowed_macros` refuses the originals.
macro_rules! levels {
    ($dollar:tt $($name:ident $level:ident),*) => { $(
        macro_rules! $name {
            (target: $target:literal, $dollar($dollar text:tt)+) => {
                $crate::foreign::log(
                    ::log::Level::$level,
                    $target,
                    format_args!($dollar($dollar text)+),
                )
            };
            ($dollar($dollar text:tt)+) => {
                $crate::foreign::log(
                    ::log::Level::$level,
                    module_path!(),
                    format_args!($dollar($dollar text)+),
                )
            };
        }
    )* };
}

levels!($ error Error, warn Warn, info Info, debug Debug, trace Trace);

#[cfg(test)]
mod tests {
    use std::panic::panic_any;

    use super::*;

    /// Panics when it is dropped.
    struct Fragile;

    impl Drop for Fragile {
        fn drop(&mut self) {
            panic!("a drop that fails");
        }
    }

    #[test]
    fn call_returns_after_every_panic() {
        assert_eq!(call(|| 7), Ok(7));
        assert_eq!(call(|| panic!("a call that fails")), Err::<(), _>(Panicked));
        assert_eq!(call(|| drop(Fragile)), Err(Panicked));
        assert_eq!(call(|| panic_any(Fragile)), Err::<(), _>(Panicked));
    }
}
