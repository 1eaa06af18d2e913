#![allow(unsafe_code)]

//! Distinguishes objects that this process created from inherited objects, and registers functions
//! that run when the process exits.
//!
//! A child of fork(2) has a copy of the parent's memory, shares the parent's open files, and has
//! one thread. A lock that another thread held during the fork stays locked in the child, and the
//! engines' threads do not exist there. Therefore each object stores the [`Process`] that created
//! it, and the child does not use inherited objects. Each process creates its own global values
//! ([`PerProcess`]). A child replaces inherited descriptors that would otherwise keep a connection
//! open or an address in use ([`Unshared`]).
//!
//! Handlers of `pthread_atfork` count the forks. The C library runs them in its function `fork`,
//! but not in `vfork` or `posix_spawn`, after which the child executes another program anyway.

use std::{
    cell::Cell,
    fmt,
    mem::ManuallyDrop,
    ops::Deref,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    ptr,
    sync::{
        Mutex, MutexGuard, Once,
        atomic::{AtomicPtr, AtomicU32, Ordering},
    },
};

use rdma_status::OsError;

use crate::{foreign::Pause, lock::unpoisoned};

/// The number of forks between this process and its earliest ancestor that used this crate.
static FORKS: AtomicU32 = AtomicU32::new(0);

static FORK_HANDLERS: Once = Once::new();

/// The descriptors that a child replaces after a fork.
static UNSHARED: Mutex<DescriptorSet> = Mutex::new(DescriptorSet(Vec::new()));

thread_local! {
    /// The lock of [`UNSHARED`] while this thread executes `fork`, and `None` at all other times.
    static HELD: Cell<Option<MutexGuard<'static, DescriptorSet>>> = const { Cell::new(None) };
}

/// The identity of the process that created an object: this process or one of its ancestors.
///
/// The number of forks is a sufficient identifier, because a process has a greater number than each
/// of its ancestors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// Returns the identifier of the calling process. The first call registers the handlers that
    /// count forks.
    pub fn this() -> Self {
        // The logger may call this function.
        let pause = Pause::begin();
        FORK_HANDLERS.call_once(|| {
            // SAFETY: the three handlers take no arguments and are functions of this crate, so they
            // stay loaded while the crate is loaded.
            let ret =
                unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
            if ret != 0 {
                error!(
                    Process,
                    "cannot detect forks: pthread_atfork: error {ret}; forked children must not \
                     use connections, listeners or engines of this process"
                );
            }
        });
        drop(pause);
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Returns whether this value identifies the calling process.
    #[inline]
    pub fn is_this(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }

    /// Returns whether this process is a child that may have inherited objects.
    #[inline]
    pub fn is_child() -> bool {
        FORKS.load(Ordering::Relaxed) != 0
    }
}

/// Leaks a part of an inherited object, because dropping the part would affect the parent process.
pub fn leak<T>(part: T) {
    let _leaked = ManuallyDrop::new(part);
}

fn unshared() -> MutexGuard<'static, DescriptorSet> {
    unpoisoned(UNSHARED.lock())
}

/// Acquires the lock of [`UNSHARED`] before a fork and holds it until the fork is complete, so that
/// the child inherits a consistent set.
extern "C" fn prepare() {
    let guard = unshared();
    // If the forking thread is exiting, its thread-local storage no longer exists. In that case,
    // the child keeps the inherited descriptors.
    let _ = HELD.try_with(|held| held.set(Some(guard)));
}

extern "C" fn in_parent() {
    let _ = HELD.try_with(Cell::take);
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    if let Ok(Some(mut unshared)) = HELD.try_with(Cell::take) {
        unshared.replace_all();
    }
}

/// A set of descriptors, one bit for each descriptor number.
struct DescriptorSet(Vec<u64>);

impl DescriptorSet {
    fn bit(fd: RawFd) -> (usize, u64) {
        let fd = fd.cast_unsigned();
        ((fd / u64::BITS) as usize, 1 << (fd % u64::BITS))
    }

    fn insert(&mut self, fd: RawFd) {
        let (at, bit) = Self::bit(fd);
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0[at] |= bit;
    }

    fn remove(&mut self, fd: RawFd) {
        let (at, bit) = Self::bit(fd);
        if let Some(word) = self.0.get_mut(at) {
            *word &= !bit;
        }
    }

    /// Replaces all descriptors of the set with duplicates of an unused eventfd, so that their
    /// numbers stay in use. This function runs in the child of a multi-threaded process, so it
    /// calls only async-signal-safe functions.
    fn replace_all(&mut self) {
        // SAFETY: `eventfd` has no preconditions.
        let dummy = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        for (at, word) in self.0.iter_mut().enumerate() {
            while *word != 0 {
                let fd = at as u32 * u64::BITS + word.trailing_zeros();
                *word &= *word - 1;
                let fd = fd.cast_signed();
                // If no eventfd could be created, close the descriptor. Its number then becomes
                // free for reuse.
                if dummy < 0 {
                    // SAFETY: this crate opened `fd` in the parent, and no code of the child uses
                    // inherited objects.
                    unsafe { libc::close(fd) };
                } else {
                    // SAFETY: this crate opened `fd` in the parent, and no code of the child uses
                    // inherited objects.
                    unsafe { libc::dup3(dummy, fd, libc::O_CLOEXEC) };
                }
            }
        }
        // SAFETY: `dummy` was opened above and is no longer used. If `dummy` is -1, `close` fails
        // without an effect.
        unsafe { libc::close(dummy) };
    }
}

/// A descriptor that a child of fork(2) replaces immediately.
///
/// If the child kept the descriptor, a connection would stay open, or an address would stay in use,
/// after the parent has closed the descriptor.
pub struct Unshared<T: AsFd> {
    fd: ManuallyDrop<T>,
    process: Process,
}

impl<T: AsFd> Unshared<T> {
    /// Adds the descriptor to the set of descriptors that a child replaces.
    pub fn new(fd: T) -> Self {
        let process = Process::this();
        unshared().insert(fd.as_fd().as_raw_fd());
        Self {
            fd: ManuallyDrop::new(fd),
            process,
        }
    }
}

impl<T: AsFd> Unshared<T> {
    /// Returns true if another process opened the descriptor. In that case, the descriptor number
    /// refers to a different file in this process.
    pub fn is_inherited(&self) -> bool {
        !self.process.is_this()
    }
}

impl<T: AsFd> Deref for Unshared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.fd
    }
}

impl<T: AsFd> AsFd for Unshared<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl<T: AsFd + fmt::Debug> fmt::Debug for Unshared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fd.fmt(f)
    }
}

impl<T: AsFd> Drop for Unshared<T> {
    fn drop(&mut self) {
        // In a child, the descriptor number refers to a different file, which must stay open.
        if !self.process.is_this() {
            return;
        }
        // The lock is held until the descriptor is closed, so that no child inherits the descriptor
        // between its removal from the set and the close.
        let mut unshared = unshared();
        unshared.remove(self.fd.as_fd().as_raw_fd());
        // SAFETY: this `drop` is the only code that drops `self.fd`, and no code uses `self.fd`
        // afterwards.
        unsafe { ManuallyDrop::drop(&mut self.fd) };
    }
}

/// A global value that each process creates at its first use. A child does not use the inherited
/// value, because another thread of the parent may have been modifying that value during the fork.
pub struct PerProcess<T: 'static> {
    make: fn() -> T,
    /// Null, or a pointer to the value of this process or of an ancestor. The value is never freed.
    made: AtomicPtr<(Process, T)>,
}

impl<T> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerProcess").finish_non_exhaustive()
    }
}

impl<T: Send + Sync> PerProcess<T> {
    /// Creates a global value. Each process creates its own value with `make`, at the first use.
    pub const fn new(make: fn() -> T) -> Self {
        Self {
            make,
            made: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Returns the value of this process. The first call creates the value.
    #[inline]
    pub fn get(&self) -> &'static T {
        let made = self.made.load(Ordering::Acquire);
        // SAFETY: `made` is null or points to a box that `renew` leaked, which is never freed.
        match unsafe { made.as_ref() } {
            Some((process, value)) if process.is_this() => value,
            Some(_) | None => self.renew(made),
        }
    }

    #[cold]
    fn renew(&self, stale: *mut (Process, T)) -> &'static T {
        // If `make` logs, the logger may need this value.
        let _pause = Pause::begin();
        let new = Box::into_raw(Box::new((Process::this(), (self.make)())));
        let order = (Ordering::AcqRel, Ordering::Acquire);
        let current = match self.made.compare_exchange(stale, new, order.0, order.1) {
            Ok(_) => new,
            Err(faster) => {
                // SAFETY: this call created the box `new`, and no other thread has received its
                // address.
                drop(unsafe { Box::from_raw(new) });
                faster
            }
        };
        // SAFETY: `current` points to a box that a thread of this process leaked and that is never
        // freed.
        unsafe { &(*current).1 }
    }
}

/// Registers a handler that runs when the process exits normally, by a return from `main` or a call
/// to `exit(3)`.
///
/// The handler runs on the thread that exits the process, while the other threads are still
/// running. The handler must not panic.
pub fn at_exit(handler: extern "C" fn()) -> Result<(), OsError> {
    // SAFETY: `atexit` accepts any function that stays loaded until it is called. If the handler
    // belongs to a library that is unloaded earlier, the C library calls the handler when it
    // unloads the library.
    let ret = unsafe { libc::atexit(handler) };
    match ret {
        0 => Ok(()),
        _ => Err(OsError::new("atexit", libc::ENOMEM)),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io};

    use super::*;

    static NUMBER: PerProcess<Mutex<u32>> = PerProcess::new(|| Mutex::new(7));

    #[test]
    fn value_of_a_process_is_made_once() {
        *NUMBER.get().lock().unwrap() += 1;
        assert_eq!(*NUMBER.get().lock().unwrap(), 8);
        assert!(Process::this().is_this());
    }

    /// Runs `check` in a child process and returns the result.
    fn in_child(check: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child of this multi-threaded test runs only `check` and async-signal-safe
        // functions, and exits with `_exit`.
        match unsafe { libc::fork() } {
            -1 => panic!("fork: {}", io::Error::last_os_error()),
            0 => {
                // SAFETY: `alarm` has no preconditions.
                unsafe { libc::alarm(20) };
                let code = libc::c_int::from(!check());
                // SAFETY: `_exit` has no preconditions.
                unsafe { libc::_exit(code) };
            }
            child => {
                let mut status = -1;
                // SAFETY: `status` is a local variable that `waitpid` may write.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                status == 0
            }
        }
    }

    #[test]
    fn child_creates_new_global_values() {
        let held = NUMBER.get().lock().unwrap();
        let before = Process::this();
        assert!(in_child(|| !before.is_this()
            && Process::is_child()
            && *NUMBER.get().lock().unwrap() == 7
            && !in_grandchild(before)));
        drop(held);
    }

    fn in_grandchild(before: Process) -> bool {
        let child = Process::this();
        !in_child(|| !before.is_this() && !child.is_this())
    }

    #[test]
    fn child_gives_up_unshared_descriptors() {
        let file = || Unshared::new(File::open("/proc/self/status").unwrap());
        let (kept, closed) = (file(), file());
        let number = closed.as_raw_fd();
        drop(closed);
        let kind = |fd: RawFd| std::fs::read_link(format!("/proc/self/fd/{fd}"));
        let is_dummy =
            || kind(kept.as_raw_fd()).is_ok_and(|kind| kind.ends_with("anon_inode:[eventfd]"));
        assert!(in_child(|| is_dummy() && kind(number).is_err()));
        assert!(!is_dummy(), "the parent must keep its descriptor");
    }
}
