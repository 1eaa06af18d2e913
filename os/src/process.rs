#![allow(unsafe_code)]

//! Distinguishes the objects of this process from inherited ones, and registers functions for its
//! end.
//!
//! A child of fork(2) has a copy of the parent's memory, shares the parent's descriptors, and has
//! one thread. A lock that another thread held during the fork stays locked in the child, and the
//! engines' threads do not exist there. So an object notes the [`Process`] that made it, and the
//! child does not use or destroy inherited objects. Each process creates its own global values
//! ([`PerProcess`]). A child replaces the descriptors that would keep a connection open or an
//! address in use ([`Unshared`]).
//!
//! Handlers of `pthread_atfork` count the forks. They run in fork(3), and neither in vfork(2) nor
//! in posix_spawn(3), whose child executes another program.

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

use crate::lock;

/// The number of forks since the first process of this family that used the crate.
static FORKS: AtomicU32 = AtomicU32::new(0);

static WATCHED: Once = Once::new();

/// The descriptors that a child gives up.
static UNSHARED: Mutex<DescriptorSet> = Mutex::new(DescriptorSet(Vec::new()));

thread_local! {
    /// The lock of [`UNSHARED`] while this thread forks.
    static HELD: Cell<Option<MutexGuard<'static, DescriptorSet>>> = const { Cell::new(None) };
}

/// The process that made an object: this one, or one of its ancestors.
///
/// The number of forks identifies the process among its ancestors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// Returns this process. Forks are counted from the first call on.
    pub fn this() -> Self {
        WATCHED.call_once(|| {
            // SAFETY: the handlers take no argument, and stay loaded with the crate.
            let ret =
                unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
            if ret != 0 {
                error!(
                    Process,
                    "pthread_atfork: error {ret}: forked children are not detected, and must not \
                     use connections, listeners and engines of this process"
                );
            }
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Returns whether this process made the object.
    #[inline]
    pub fn is_this(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }

    /// Returns whether this process may have inherited anything.
    #[inline]
    pub fn is_child() -> bool {
        FORKS.load(Ordering::Relaxed) != 0
    }
}

/// Leaks a part of an inherited object instead of dropping it.
pub fn leak<T>(part: T) {
    let _leaked = ManuallyDrop::new(part);
}

fn unshared() -> MutexGuard<'static, DescriptorSet> {
    lock(&UNSHARED)
}

/// Holds the lock during the fork, so that the child inherits it in a known state.
extern "C" fn prepare() {
    let guard = unshared();
    // In a thread that is ending, the access to thread-local storage fails, and the child keeps its
    // descriptors.
    let _ = HELD.try_with(|held| held.set(Some(guard)));
}

extern "C" fn in_parent() {
    let _ = HELD.try_with(Cell::take);
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    if let Ok(Some(mut unshared)) = HELD.try_with(Cell::take) {
        unshared.give_up();
    }
}

/// A set of descriptors: a bit for each number.
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

    /// Replaces all of them by duplicates of an unused eventfd, so that their numbers stay in use.
    /// Calls only async-signal-safe functions, because the parent may have had other threads.
    fn give_up(&mut self) {
        // SAFETY: it has no preconditions.
        let dummy = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        for (at, word) in self.0.iter_mut().enumerate() {
            while *word != 0 {
                let fd = at as u32 * u64::BITS + word.trailing_zeros();
                *word &= *word - 1;
                let fd = fd.cast_signed();
                // If the eventfd cannot be created, the descriptors are closed, and their numbers
                // become free.
                if dummy < 0 {
                    // SAFETY: the descriptor is this crate's, and inherited objects are not used.
                    unsafe { libc::close(fd) };
                } else {
                    // SAFETY: as above.
                    unsafe { libc::dup3(dummy, fd, libc::O_CLOEXEC) };
                }
            }
        }
        // SAFETY: made above. It fails if it was not made.
        unsafe { libc::close(dummy) };
    }
}

/// A descriptor that a child of a fork gives up at once.
///
/// Otherwise the child would keep a connection open, or an address in use, after the parent has
/// closed it.
pub struct Unshared<T: AsFd> {
    fd: ManuallyDrop<T>,
    process: Process,
}

impl<T: AsFd> Unshared<T> {
    /// Adds the descriptor to the list of descriptors that a child gives up.
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
    /// Returns whether another process opened the descriptor, so that it is not valid here.
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
        // In a child the descriptor has been replaced, and its number may be that of another file.
        if !self.process.is_this() {
            return;
        }
        // The lock is held until the descriptor is closed, so that no other thread forks between
        // the two steps.
        let mut unshared = unshared();
        unshared.remove(self.fd.as_fd().as_raw_fd());
        // SAFETY: dropped once, here, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.fd) };
    }
}

/// A global value that each process makes for itself at the first use, because a child may inherit
/// a value that another thread of the parent was changing.
pub struct PerProcess<T: 'static> {
    make: fn() -> T,
    /// Null, or the value of this process or of an ancestor. Never freed.
    made: AtomicPtr<(Process, T)>,
}

impl<T> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerProcess").finish_non_exhaustive()
    }
}

impl<T: Send + Sync> PerProcess<T> {
    /// Makes a value with `make` in each process that uses it.
    pub const fn new(make: fn() -> T) -> Self {
        Self {
            make,
            made: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Returns this process's value.
    #[inline]
    pub fn get(&self) -> &'static T {
        let made = self.made.load(Ordering::Acquire);
        // SAFETY: it is null or a box that was leaked by `renew`.
        match unsafe { made.as_ref() } {
            Some((process, value)) if process.is_this() => value,
            Some(_) | None => self.renew(made),
        }
    }

    #[cold]
    fn renew(&self, stale: *mut (Process, T)) -> &'static T {
        let new = Box::into_raw(Box::new((Process::this(), (self.make)())));
        let order = (Ordering::AcqRel, Ordering::Acquire);
        let current = match self.made.compare_exchange(stale, new, order.0, order.1) {
            Ok(_) => new,
            Err(faster) => {
                // SAFETY: made above, and not published.
                drop(unsafe { Box::from_raw(new) });
                faster
            }
        };
        // SAFETY: a box that was leaked here or in another thread of this process.
        unsafe { &(*current).1 }
    }
}

/// Registers a handler for a normal end of the process: a return from `main`, or `exit(3)`.
///
/// It runs in the thread that ends the process, while the other threads continue, and must not
/// panic.
pub fn at_exit(handler: extern "C" fn()) -> Result<(), OsError> {
    // SAFETY: it takes any function, which must remain loaded until it is called: handlers of a
    // library that is unloaded earlier are called at that time.
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

    /// Runs `check` in a child, and returns its result.
    fn in_child(check: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child makes a few calls, and ends.
        match unsafe { libc::fork() } {
            -1 => panic!("fork: {}", io::Error::last_os_error()),
            0 => {
                // SAFETY: it has no preconditions.
                unsafe { libc::alarm(20) };
                let code = libc::c_int::from(!check());
                // SAFETY: it has no preconditions.
                unsafe { libc::_exit(code) };
            }
            child => {
                let mut status = -1;
                // SAFETY: the status is a local.
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
        assert!(!is_dummy(), "the parent's is as it was");
    }
}
