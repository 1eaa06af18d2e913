#![allow(unsafe_code)]

//! Handlers that run when the process ends.

use rdma_status::OsError;

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
