#![allow(unsafe_code)]

//! What is to happen when the process ends.

use crate::status::OsError;

/// Has `handler` called when the process ends normally: by a return from `main`, or by `exit(3)`.
/// It runs in the thread that ends the process, while the others go on, and must not panic.
pub(crate) fn at_exit(handler: extern "C" fn()) -> Result<(), OsError> {
    // SAFETY: it takes any function, which stays where it is for as long as the code of this crate
    // is there: what is unloaded earlier has its handlers called then.
    let ret = unsafe { libc::atexit(handler) };
    match ret {
        0 => Ok(()),
        _ => Err(OsError::new("atexit", libc::ENOMEM)),
    }
}
