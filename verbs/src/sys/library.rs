//! Libraries that are opened when the program runs, and their functions.
#![allow(unsafe_code)]

use libloading::Library;
use rdma_status::OsError;

/// Opens a library, which must not be closed.
///
/// # Errors
///
/// `ELIBACC` with its name.
pub(crate) fn library(file: &'static str) -> Result<Library, OsError> {
    // SAFETY: the libraries have initialisers that may run at any time, and they are not closed.
    unsafe { Library::new(file) }.map_err(|error| {
        rdmsg_os::info!(Rdma, "cannot open {file}: {error}");
        OsError::new(file, libc::ELIBACC)
    })
}

/// Returns the function of that name, in its default version, with which a program is linked, too.
///
/// # Errors
///
/// `ELIBBAD` with its name, if the library lacks it.
///
/// # Safety
///
/// `F` is the type of a pointer to that function.
pub(crate) unsafe fn function<F: Copy>(
    library: &Library,
    name: &'static str,
) -> Result<F, OsError> {
    // SAFETY: the caller guarantees the conditions on the type.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    found.map(|function| *function).map_err(|error| {
        rdmsg_os::info!(Rdma, "cannot find the function {name}: {error}");
        OsError::new(name, libc::ELIBBAD)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_library_is_named() {
        assert_eq!(
            library("librdmsg-missing.so.1").err(),
            Some(OsError::new("librdmsg-missing.so.1", libc::ELIBACC))
        );
        let c = library("libc.so.6").unwrap();
        // SAFETY: there is no such function.
        let found = unsafe { function::<unsafe extern "C" fn()>(&c, "rdmsg_missing") };
        assert_eq!(
            found.err(),
            Some(OsError::new("rdmsg_missing", libc::ELIBBAD))
        );
    }
}
