#![allow(unsafe_code)]

//! Distinguishes the objects of this process from inherited objects, and registers functions that
//! run when the process ends.
//!
//! A child of fork(2) has a copy of the parent's memory, shares the parent's open files, and has
//! one thread. A lock that another thread held during the fork stays locked in the child, and the
//! engines' threads do not exist there. Therefore each object stores the [`Process`] that created
//! it, and the child does not touch inherited objects. Each process creates its own global values
//! ([`PerProcess`]). A child replaces the descriptors that would otherwise keep a connection open
//! or an address in use ([`Unshared`]).
//!
//! Handlers of `pthread_atfork` count the forks. They run in fork(3), but not in vfork(2) and
//! posix_spawn(3), whose child executes another program.

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

/// The number of forks between the first process that used this crate and this process.
static FORKS: AtomicU32 = AtomicU32::new(0);

static WATCHED: Once = Once::new();

/// The descriptors that a child replaces after a fork.
static UNSHARED: Mutex<DescriptorSet> = Mutex::new(DescriptorSet(Vec::new()));

thread_local! {
    /// Holds the lock of [`UNSHARED`] while this thread executes fork(3).
    static HELD: Cell<Option<MutexGuard<'static, DescriptorSet>>> = const { Cell::new(None) };
}

/// Identifies the process that created an object: this process or one of its ancestors.
///
/// The number of forks is sufficient, because it differs between a process and each of its
/// ancestors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// Returns the identification of the calling process. The first call begins to count forks.
    pub fn this() -> Self {
        WATCHED.call_once(|| {
            // SAFETY: the three handlers are functions of this crate without arguments, and stay
            // loaded while the crate is loaded.
            let ret =
                unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
            if ret != 0 {
                error!(
                    Process,
                    "cannot detect forks: pthread_atfork: error {ret}; forked children must not \
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

    /// Returns whether this process is a child that may have inherited objects.
    #[inline]
    pub fn is_child() -> bool {
        FORKS.load(Ordering::Relaxed) != 0
    }
}

/// Leaks a part of an inherited object, because dropping it would affect the parent.
pub fn leak<T>(part: T) {
    let _leaked = ManuallyDrop::new(part);
}

fn unshared() -> MutexGuard<'static, DescriptorSet> {
    lock(&UNSHARED)
}

/// Runs before a fork. Holds the lock of [`UNSHARED`] during the fork, so that the child inherits
/// the lock and the set in a consistent state.
extern "C" fn prepare() {
    let guard = unshared();
    // A thread that is ending no longer has thread-local storage. If such a thread forks, the child
    // keeps the descriptors.
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

    /// Replaces all descriptors of the set by duplicates of an unused eventfd, so that their
    /// numbers stay in use. Calls only async-signal-safe functions, because the process is the
    /// child of a process with several threads.
    fn give_up(&mut self) {
        // SAFETY: `eventfd` has no preconditions.
        let dummy = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        for (at, word) in self.0.iter_mut().enumerate() {
            while *word != 0 {
                let fd = at as u32 * u64::BITS + word.trailing_zeros();
                *word &= *word - 1;
                let fd = fd.cast_signed();
                // If no eventfd could be created, the descriptors are closed, so their numbers
                // become free.
                if dummy < 0 {
                    // SAFETY: `fd` was opened by this crate in the parent, and no code of the child
                    // uses inherited objects.
                    unsafe { libc::close(fd) };
                } else {
                    // SAFETY: `fd` was opened by this crate in the parent, and no code of the child
                    // uses inherited objects.
                    unsafe { libc::dup3(dummy, fd, libc::O_CLOEXEC) };
                }
            }
        }
        // SAFETY: `dummy` was opened above and is no longer used. If it is -1, `close` fails
        // without an effect.
        unsafe { libc::close(dummy) };
    }
}

/// A descriptor that a child of fork(2) gives up at once.
///
/// Otherwise the child would keep a connection open or an address in use after the parent has
/// closed the descriptor.
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
    /// Returns whether another process opened the descriptor, so that its number means another file
    /// in this process.
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
        // In a child the number means another file, which must not be closed.
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
/// value, because another thread of the parent may have been changing it during the fork.
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
    /// Creates a global whose value `make` creates in each process that uses it.
    pub const fn new(make: fn() -> T) -> Self {
        Self {
            make,
            made: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Returns the value of this process, and creates it at the first call.
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
        let new = Box::into_raw(Box::new((Process::this(), (self.make)())));
        let order = (Ordering::AcqRel, Ordering::Acquire);
        let current = match self.made.compare_exchange(stale, new, order.0, order.1) {
            Ok(_) => new,
            Err(faster) => {
                // SAFETY: `new` is the box that this call created, and no other thread has got its
                // address.
                drop(unsafe { Box::from_raw(new) });
                faster
            }
        };
        // SAFETY: `current` points to a box that this thread or another thread of this process
        // leaked, and that is never freed.
        unsafe { &(*current).1 }
    }
}

/// Registers a handler for a normal end of the process, which is a return from `main` or a call of
/// `exit(3)`.
///
/// The handler runs in the thread that ends the process, while the other threads continue. It must
/// not panic.
pub fn at_exit(handler: extern "C" fn()) -> Result<(), OsError> {
    // SAFETY: `atexit` accepts any function that stays loaded until it is called. If the handler is
    // in a library that is unloaded earlier, the C library calls the handler at that time.
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

    /// Runs `check` in a child process. Returns whether `check` returned true there.
    fn in_child(check: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child process of this multi-threaded test runs only `check` and
        // async-signal-safe functions, and ends with `_exit`.
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
        assert!(!is_dummy(), "the parent's is as it was");
    }
}
