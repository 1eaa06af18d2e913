//! Runs foreign code: wakers of tasks, and the logger of the application.
//!
//! Foreign code may panic, block, or call functions of the library. Three rules make this harmless:
//!
//! * No lock is held while foreign code runs, because a waker may poll its task immediately, and a
//!   logger may send its line over a connection. A log line therefore waits until its thread holds
//!   no [`Guard`](crate::Guard) and no other [`Pause`].
//! * [`call`] catches a panic, so that the panic ends neither the engine's thread nor a destructor.
//!   If a waker panics, its task may never be polled again. The connection that the task waits for
//!   is therefore ended. If the logger panics, the current log line is lost, and no connection
//!   ends. A panic is not logged, because the log line would go to the same logger.
//! * A thread that does the engine's work does not run foreign code immediately, because other
//!   threads depend on the engine. It [collects](collect) the code as [`ForeignCall`]s, and runs
//!   them after it has released the engine's state. If the code blocks, another thread can then
//!   continue the engine's work. All other threads run foreign code immediately: code that blocks
//!   delays only the thread that runs it.
//!
//! A program that is built with `panic = "abort"` still aborts at the first panic.
//!
//! A waker may also be cloned or dropped while its task is being polled. If `clone` or `drop` then
//! panics, the panic propagates to the caller of that poll.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    fmt,
    marker::PhantomData,
    mem::{self, ManuallyDrop},
    panic::{AssertUnwindSafe, Location, catch_unwind},
    sync::{Arc, Condvar, Mutex, Once},
    thread,
    time::Duration,
};

use log::{Record, STATIC_MAX_LEVEL};

use crate::{PerProcess, at_exit, lock};

pub use log::Level;

/// The target of a log line. It names the part of the library that wrote the line, and a logger can
/// filter lines by their targets.
///
/// The user guide lists the targets. The name of a target does not change if code moves to another
/// source file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// Events of one connection. The line begins with `conn` and the connection's number.
    Connection,
    /// Connection-manager events of one connection. The line begins with `conn` and the
    /// connection's number.
    Cm,
    /// Connection attempts that fall back to TCP, or that a persistent client retries.
    Connect,
    /// Listeners, and the connection requests that they reject.
    Listener,
    /// The engine's thread, and failures that concern all connections of the engine.
    Engine,
    /// Sockets of the TCP transport.
    Tcp,
    /// RDMA libraries, RDMA devices, and the connection manager.
    Rdma,
    /// Connections that use the rsockets protocol.
    Rsocket,
    /// Connections that use the protocol of Valkey over RDMA.
    Valkey,
    /// The export of statistics.
    Statistics,
    /// The process itself: its forks, and memory that it could not free.
    Process,
    /// The `serve` and `bridge` commands of the `rdmsg` program.
    Command,
}

impl Target {
    /// All targets.
    pub const ALL: [Self; 12] = [
        Self::Connection,
        Self::Cm,
        Self::Connect,
        Self::Listener,
        Self::Engine,
        Self::Tcp,
        Self::Rdma,
        Self::Rsocket,
        Self::Valkey,
        Self::Statistics,
        Self::Process,
        Self::Command,
    ];

    /// Returns the target's name in the form that the logger receives.
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
            Self::Valkey => "rdmsg::valkey",
            Self::Statistics => "rdmsg::statistics",
            Self::Process => "rdmsg::process",
            Self::Command => "rdmsg::command",
        }
    }
}

/// Defines one macro per log level, with the name of the corresponding macro of the crate `log`.
/// Each macro takes a [`Target`] as its first argument. The lint `disallowed_macros` forbids the
/// macros of `log` in this workspace.
macro_rules! levels {
    ($dollar:tt $($name:ident $level:ident),*) => { $(
        /// Logs a line like the macro of the same name in the crate `log`. The first argument is
        /// the name of a [`Target`](crate::foreign::Target). [`foreign::log`](crate::foreign::log)
        /// calls the logger.
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

/// The error that replaces the result of foreign code that panicked. The panic hook has already
/// printed the panic message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panicked;

/// Runs foreign code and catches a panic. The caller must hold no lock.
pub fn call<T>(code: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(code)).map_err(|payload| {
        // The destructor of the panic payload is foreign code, too, so dropping the payload may
        // cause a second panic. The payload of the second panic is leaked.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(payload)));
        let _leaked = dropped.map_err(ManuallyDrop::new);
        Panicked
    })
}

thread_local! {
    /// Whether this thread collects foreign calls. The flag is separate from `FOREIGN_CALLS`,
    /// because a `Cell<bool>` has no destructor and is read with a single load. A thread that does
    /// not collect foreign calls reads only the flag.
    static COLLECTS: Cell<bool> = const { Cell::new(false) };
    static FOREIGN_CALLS: RefCell<Vec<Arc<dyn ForeignCall>>> = const { RefCell::new(Vec::new()) };
}

thread_local! {
    /// The number of this thread's [`Pause`]s, plus 1 if `PAUSED_LINES` is empty. So the number
    /// becomes 0 only when the last pause ends and there are lines. Each lock is a pause, and this
    /// test costs one instruction.
    static PAUSES: Cell<u32> = const { Cell::new(1) };
    static PAUSED_LINES: RefCell<Vec<LogLine>> = const { RefCell::new(Vec::new()) };
}

/// A part of a thread's execution in which the thread does not call the logger. Pauses can be
/// nested. When the outermost one ends, the thread logs its lines.
#[derive(Debug)]
pub struct Pause(PhantomData<*const ()>);

impl Pause {
    /// Begins a pause of the calling thread. It ends when the value is dropped.
    #[inline]
    #[must_use]
    pub fn begin() -> Self {
        PAUSES.set(PAUSES.get() + 1);
        Self(PhantomData)
    }

    /// Returns whether the end of this pause will call the logger.
    pub(crate) fn ends_with_lines(&self) -> bool {
        PAUSES.get() == 1
    }
}

impl Drop for Pause {
    #[inline]
    fn drop(&mut self) {
        let left = PAUSES.get() - 1;
        PAUSES.set(left);
        if left == 0 {
            write_paused_lines();
        }
    }
}

/// Returns whether the calling thread has a [`Pause`].
fn is_paused() -> bool {
    let has_lines = || PAUSED_LINES.try_with(|lines| !lines.borrow().is_empty());
    PAUSES.get() != 1 || has_lines().unwrap_or(false)
}

/// Keeps a line until the calling thread's pauses end. If the thread is exiting and its storage no
/// longer exists, the line is lost.
fn keep(line: LogLine) {
    let _ = PAUSED_LINES.try_with(|lines| {
        let mut lines = lines.borrow_mut();
        if lines.is_empty() {
            PAUSES.set(PAUSES.get() - 1);
        }
        lines.push(line);
    });
}

#[cold]
fn write_paused_lines() {
    PAUSES.set(1);
    let lines = PAUSED_LINES.try_with(RefCell::take);
    lines.into_iter().flatten().for_each(LogLine::write);
}

/// Foreign code that a thread runs later.
pub trait ForeignCall: Send + Sync {
    /// Runs the foreign code.
    fn run(self: Arc<Self>);
}

/// If `collects` is true, makes the calling thread collect foreign code. If not, makes the thread
/// run foreign code immediately.
pub fn collect(collects: bool) {
    COLLECTS.set(collects);
}

/// Returns true if the calling thread collects foreign code.
pub fn collects() -> bool {
    COLLECTS.get()
}

/// Adds a foreign call to the calling thread's list. The calling thread must be one that
/// [`collects`] foreign code.
pub fn defer(foreign_call: Arc<dyn ForeignCall>) {
    FOREIGN_CALLS.with_borrow_mut(|foreign_calls| foreign_calls.push(foreign_call));
}

/// Removes and returns the foreign calls that the calling thread has collected.
pub fn take_foreign_calls() -> Vec<Arc<dyn ForeignCall>> {
    FOREIGN_CALLS.take()
}

/// Runs `code` once: immediately, or later as a [`ForeignCall`] if the calling thread
/// collects foreign calls.
pub fn call_once(code: impl FnOnce() + Send + 'static) {
    struct Once<F>(Mutex<Option<F>>);

    impl<F: FnOnce() + Send> ForeignCall for Once<F> {
        fn run(self: Arc<Self>) {
            let code = lock(&self.0).take();
            // Ignore a panic. If a panic must end a connection, `code` itself catches the panic.
            let _ = code.map(call);
        }
    }

    if collects() {
        defer(Arc::new(Once(Mutex::new(Some(code)))));
    } else {
        let _ = call(code);
    }
}

/// A queue of calls to one piece of foreign code, for example to one connection's wakers. At most
/// one thread makes these calls at a time, so foreign code that never returns blocks only one
/// thread.
#[derive(Debug, Default)]
pub struct PendingWork<T> {
    state: Mutex<PendingState<T>>,
    /// Notified when the thread that makes the calls has finished.
    idle: Condvar,
}

#[derive(Debug, Default)]
struct PendingState<T> {
    work: Option<T>,
    /// Whether a thread is making the calls, or has collected a [`ForeignCall`] that will make
    /// them.
    is_taken: bool,
}

impl<T: Default> PendingWork<T> {
    /// Adds calls to the queue. Returns true if no other thread makes the queued calls. In that
    /// case, the caller must create a [`ForeignCall`] that makes them.
    pub fn add(&self, add: impl FnOnce(&mut T)) -> bool {
        let mut state = lock(&self.state);
        add(state.work.get_or_insert_default());
        !mem::replace(&mut state.is_taken, true)
    }

    /// Removes and returns the queued calls. If there are none, returns `None` and records that the
    /// [`ForeignCall`] has finished.
    pub fn next(&self) -> Option<T> {
        let mut state = lock(&self.state);
        let work = state.work.take();
        state.is_taken = work.is_some();
        if work.is_none() {
            self.idle.notify_all();
        }
        work
    }

    /// Leaves the queued calls to the next caller of [`add`](Self::add), because this caller cannot
    /// make them.
    fn postpone(&self) {
        lock(&self.state).is_taken = false;
        self.idle.notify_all();
    }

    /// Waits until the queued calls have been made, for at most the time `bound`.
    fn wait(&self, bound: Duration) {
        let is_taken = |state: &mut PendingState<T>| state.is_taken;
        let state = &self.state;
        drop(lock(state).wait_while(state, &self.idle, Some(bound), is_taken));
    }
}

/// A log line that waits.
struct LogLine {
    level: Level,
    target: Target,
    caller: &'static Location<'static>,
    text: String,
}

impl LogLine {
    /// Passes the line to the logger.
    fn write(self) {
        let Self {
            level,
            target,
            caller,
            text,
        } = self;
        write(level, target, caller, format_args!("{text}"));
    }
}

/// The pending log lines, which the threads of all engines have collected and not yet passed to the
/// logger. The number counts the lines that were dropped because [`MAX_LINES`] lines were already
/// pending.
#[derive(Default)]
struct LogLines(VecDeque<LogLine>, usize);

/// The maximum number of pending lines. The limit is high, so that lines are lost only if the
/// logger blocks, and not if it is slow during a burst of lines.
const MAX_LINES: usize = 4096;

static LINES: PerProcess<PendingWork<LogLines>> = PerProcess::new(PendingWork::default);

/// Waits until the logger has received all lines of the engines' threads, for at most the time
/// `bound`.
pub fn wait_for_log(bound: Duration) {
    LINES.get().wait(bound);
}

/// The [`ForeignCall`] that passes [`LINES`] to the logger.
struct Writer;

impl ForeignCall for Writer {
    fn run(self: Arc<Self>) {
        while let Some(LogLines(lines, lost)) = LINES.get().next() {
            lines.into_iter().for_each(LogLine::write);
            if lost > 0 {
                warn!(
                    Engine,
                    "engine: dropped {lost} log lines, because the logger blocked"
                );
            }
        }
    }
}

/// Logs a line. Ignores the line if its level is disabled.
///
/// A thread that collects foreign code queues the line for all engines. A thread with a [`Pause`]
/// keeps the line until its pauses end. Any other thread passes the line to the logger immediately.
#[track_caller]
pub fn log(level: Level, target: Target, text: fmt::Arguments<'_>) {
    if level > STATIC_MAX_LEVEL || level > log::max_level() {
        return;
    }
    let caller = Location::caller();
    if !collects() && !is_paused() {
        return write(level, target, caller, text);
    }
    let line = LogLine {
        level,
        target,
        caller,
        text: text.to_string(),
    };
    if !collects() {
        return keep(line);
    }
    if enqueue(line) {
        defer(Arc::new(Writer));
    }
}

/// Logs a line as [`log()`] does, but on a new thread. Code under a lock of
/// [`lock_hot`](crate::lock_hot) uses this function for failures that hardly ever occur. If no
/// thread can be started, the line waits for the next line that is logged on another thread.
#[track_caller]
pub fn log_elsewhere(level: Level, target: Target, text: fmt::Arguments<'_>) {
    if collects() {
        return log(level, target, text);
    }
    if level > STATIC_MAX_LEVEL || level > log::max_level() {
        return;
    }
    let line = LogLine {
        level,
        target,
        caller: Location::caller(),
        text: text.to_string(),
    };
    WRITES_AT_EXIT.call_once(|| {
        // If there is no memory for the handler, the process may exit before the line is written.
        let _ = at_exit(write_at_exit);
    });
    if enqueue(line) {
        let thread = thread::Builder::new().name("rdmsg-log".into());
        if thread.spawn(|| Arc::new(Writer).run()).is_err() {
            LINES.get().postpone();
        }
    }
}

static WRITES_AT_EXIT: Once = Once::new();

extern "C" fn write_at_exit() {
    wait_for_log(Duration::from_secs(1));
}

/// Adds a line to the pending lines. Returns true if no other thread writes them. In that case, the
/// caller must run a [`Writer`].
fn enqueue(line: LogLine) -> bool {
    LINES.get().add(|LogLines(lines, lost)| {
        if lines.len() < MAX_LINES {
            lines.push_back(line);
        } else {
            *lost += 1;
        }
    })
}

fn write(level: Level, target: Target, caller: &'static Location<'_>, text: fmt::Arguments<'_>) {
    // Ignore a panic of the logger: the line is lost.
    let _ = call(|| {
        let line = Record::builder()
            .level(level)
            .target(target.name())
            .module_path(Some(target.name()))
            .file_static(Some(caller.file()))
            .line(Some(caller.line()))
            .args(text)
            .build();
        log::logger().log(&line);
    });
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;

    use super::*;

    /// A value whose `drop` panics.
    struct Fragile;

    impl Drop for Fragile {
        fn drop(&mut self) {
            panic!("a drop that fails");
        }
    }

    #[test]
    fn targets_have_names_below_that_of_the_crate() {
        for (number, target) in Target::ALL.into_iter().enumerate() {
            assert_eq!(
                target as usize, number,
                "`ALL` must list all targets in order"
            );
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
