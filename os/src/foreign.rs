//! Runs foreign code: wakers of tasks, and the logger of the application.
//!
//! Foreign code may panic, block, or call back into this crate. Three rules keep that harmless:
//!
//! * No lock is held while it runs. A waker may poll its task at once, and a logger may send its
//!   line over a connection.
//! * [`call`] stops a panic, so that it ends neither the engine's thread nor a destructor. A waker
//!   that panics ends the connection that its task waits on, because that task may never be polled
//!   again. If the logger panics, only that line is lost: no connection caused the panic, and a
//!   line about it would go to the same logger.
//! * The engine's thread, on which others depend, [collects](collect) its foreign code as [deferred
//!   calls](ForeignCall) and runs them when it can be relieved. All other threads run foreign code
//!   at once, and such code delays only them.
//!
//! A program that is built with `panic = "abort"` ends at the first panic, as always.
//!
//! `clone` and `drop` of a waker may also run inside of a poll of the task that owns the waker.
//! There a panic passes to the caller of that poll.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    fmt,
    mem::{self, ManuallyDrop},
    panic::{AssertUnwindSafe, Location, catch_unwind},
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use log::{Record, STATIC_MAX_LEVEL};

use crate::{PerProcess, lock};

pub use log::Level;

/// The target of a log line, by which a logger can filter: the part of the library that the line
/// concerns.
///
/// The guide lists the names, which do not change when source files move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// One connection. The line begins with `conn` and the connection's number.
    Connection,
    /// Events of the connection manager for one connection. The line begins as those of
    /// [`Connection`](Self::Connection).
    Cm,
    /// Connects that fall back to TCP, or that a persistent client repeats.
    Connect,
    /// Listeners, and requests that they reject.
    Listener,
    /// The engine's thread, and failures that concern all of its connections.
    Engine,
    /// Sockets of the transport TCP.
    Tcp,
    /// RDMA: its libraries, devices and connection manager.
    Rdma,
    /// Connections in the protocol of rsockets.
    Rsocket,
    /// The export of statistics.
    Statistics,
    /// The process: forks, and memory that could not be released.
    Process,
    /// The program `rdmsg`: its commands `serve` and `bridge`.
    Command,
}

impl Target {
    /// All targets.
    pub const ALL: [Self; 11] = [
        Self::Connection,
        Self::Cm,
        Self::Connect,
        Self::Listener,
        Self::Engine,
        Self::Tcp,
        Self::Rdma,
        Self::Rsocket,
        Self::Statistics,
        Self::Process,
        Self::Command,
    ];

    /// Returns the text that the logger gets.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connection => "rdmsg::connection",
            Self::Cm => "rdmsg::cm",
            Self::Connect => "rdmsg::connect",
            Self::Listener => "rdmsg::listener",
            Self::Engine => "rdmsg::engine",
            Self::Tcp => "rdmsg::tcp",
            Self::Rdma => "rdmsg::rdma",
            Self::Rsocket => "rdmsg::rsocket",
            Self::Statistics => "rdmsg::statistics",
            Self::Process => "rdmsg::process",
            Self::Command => "rdmsg::command",
        }
    }
}

/// Defines macros with the names of those of the crate `log`, whose first argument is a
/// [`Target`]. The lint `disallowed_macros` refuses the originals.
macro_rules! levels {
    ($dollar:tt $($name:ident $level:ident),*) => { $(
        /// Logs as the macro with this name of the crate `log`, with a target, through
        /// [`foreign`](crate::foreign).
        #[macro_export]
        macro_rules! $name {
            ($dollar target:ident, $dollar($dollar text:tt)+) => {
                $crate::foreign::log(
                    $crate::foreign::Level::$level,
                    $crate::foreign::Target::$dollar target,
                    format_args!($dollar($dollar text)+),
                )
            };
        }
    )* };
}

levels!($ error Error, warn Warn, info Info, debug Debug, trace Trace);

/// Foreign code panicked. The panic hook has printed the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panicked;

/// Runs foreign code. The caller holds no lock.
pub fn call<T>(code: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(code)).map_err(|payload| {
        // The payload of the panic is foreign too, so its drop may panic. The payload of that
        // second panic is leaked.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(payload)));
        let _leaked = dropped.map_err(ManuallyDrop::new);
        Panicked
    })
}

thread_local! {
    /// Whether this thread collects foreign calls. It is a variable of its own because it needs no
    /// destructor, so that it costs other threads only one load.
    static COLLECTS: Cell<bool> = const { Cell::new(false) };
    static FOREIGN_CALLS: RefCell<Vec<Arc<dyn ForeignCall>>> = const { RefCell::new(Vec::new()) };
}

/// Foreign code to be run later, by one thread.
pub trait ForeignCall: Send + Sync {
    /// Runs the code.
    fn run(self: Arc<Self>);
}

/// Sets whether this thread collects its foreign code, or runs it at once.
pub fn collect(collects: bool) {
    COLLECTS.set(collects);
}

/// Whether this thread collects its foreign code.
pub fn collects() -> bool {
    COLLECTS.get()
}

/// Queues a foreign call for this thread, which collects such calls.
pub fn leave(foreign_call: Arc<dyn ForeignCall>) {
    FOREIGN_CALLS.with_borrow_mut(|foreign_calls| foreign_calls.push(foreign_call));
}

/// Takes the foreign calls that were queued for this thread.
pub fn take_foreign_calls() -> Vec<Arc<dyn ForeignCall>> {
    FOREIGN_CALLS.take()
}

/// Runs foreign code that is run once: now, or as a queued foreign call if this thread collects.
pub fn call_once(code: impl FnOnce() + Send + 'static) {
    struct Once<F>(Mutex<Option<F>>);

    impl<F: FnOnce() + Send> ForeignCall for Once<F> {
        fn run(self: Arc<Self>) {
            let code = lock(&self.0).take();
            // `code` has handled a panic itself, or a panic has no consequence.
            let _ = code.map(call);
        }
    }

    if collects() {
        leave(Arc::new(Once(Mutex::new(Some(code)))));
    } else {
        let _ = call(code);
    }
}

/// The queued work of one source of foreign code, such as a connection. One thread at a time does
/// it, so that foreign code that never returns blocks one thread only.
#[derive(Debug, Default)]
pub struct PendingWork<T> {
    state: Mutex<PendingState<T>>,
    /// Notified when no thread does the work.
    idle: Condvar,
}

#[derive(Debug, Default)]
struct PendingState<T> {
    work: Option<T>,
    /// Whether a thread is doing the work, or a foreign call for it is queued.
    is_taken: bool,
}

impl<T: Default> PendingWork<T> {
    /// Adds work. Returns whether the caller has to queue a foreign call, because no thread is
    /// doing the work.
    pub fn add(&self, add: impl FnOnce(&mut T)) -> bool {
        let mut state = lock(&self.state);
        add(state.work.get_or_insert_default());
        !mem::replace(&mut state.is_taken, true)
    }

    /// Returns the next work, or `None` if there is none, which ends the foreign call.
    pub fn next(&self) -> Option<T> {
        let mut state = lock(&self.state);
        let work = state.work.take();
        state.is_taken = work.is_some();
        if work.is_none() {
            self.idle.notify_all();
        }
        work
    }

    /// Waits until no thread does the work, for at most `bound`.
    fn wait(&self, bound: Duration) {
        let is_taken = |state: &mut PendingState<T>| state.is_taken;
        drop(
            self.idle
                .wait_timeout_while(lock(&self.state), bound, is_taken),
        );
    }
}

/// A line for the log.
struct Line {
    level: Level,
    target: Target,
    place: &'static Location<'static>,
    text: String,
}

/// The lines of all engines' threads that the logger has not taken, and the number of later lines
/// that were lost because [`MAX_LINES`] were queued.
#[derive(Default)]
struct Lines(VecDeque<Line>, usize);

/// The greatest number of lines that are queued while the logger blocks. It is large enough that a
/// slow logger gets all lines of a burst.
const MAX_LINES: usize = 4096;

static LINES: PerProcess<PendingWork<Lines>> = PerProcess::new(PendingWork::default);

/// Waits until the logger has taken the lines of all engines' threads, for at most `bound`.
pub fn wait_for_log(bound: Duration) {
    LINES.get().wait(bound);
}

/// Writes [`LINES`].
struct Writer;

impl ForeignCall for Writer {
    fn run(self: Arc<Self>) {
        while let Some(Lines(lines, lost)) = LINES.get().next() {
            for Line {
                level,
                target,
                place,
                text,
            } in lines
            {
                write(level, target, place, format_args!("{text}"));
            }
            if lost > 0 {
                warn!(
                    Engine,
                    "{lost} log lines were dropped while the logger blocked"
                );
            }
        }
    }
}

/// Passes a line to the logger, if it accepts lines of this level. The caller holds no lock, or its
/// thread collects foreign code.
#[track_caller]
pub fn log(level: Level, target: Target, text: fmt::Arguments<'_>) {
    if level > STATIC_MAX_LEVEL || level > log::max_level() {
        return;
    }
    let place = Location::caller();
    if !collects() {
        return write(level, target, place, text);
    }
    let text = text.to_string();
    let is_first = LINES.get().add(|Lines(lines, lost)| {
        if lines.len() < MAX_LINES {
            lines.push_back(Line {
                level,
                target,
                place,
                text,
            });
        } else {
            *lost += 1;
        }
    });
    if is_first {
        leave(Arc::new(Writer));
    }
}

fn write(level: Level, target: Target, place: &'static Location<'_>, text: fmt::Arguments<'_>) {
    // A panic loses the line.
    let _ = call(|| {
        let line = Record::builder()
            .level(level)
            .target(target.name())
            .module_path(Some(target.name()))
            .file_static(Some(place.file()))
            .line(Some(place.line()))
            .args(text)
            .build();
        log::logger().log(&line);
    });
}

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
    fn targets_have_names_below_that_of_the_crate() {
        for (number, target) in Target::ALL.into_iter().enumerate() {
            assert_eq!(target as usize, number, "all are listed");
            assert!(target.name().starts_with("rdmsg::"), "{target:?}");
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
