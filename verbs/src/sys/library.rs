//! Opens shared libraries at run time, and looks up their functions.
#![allow(unsafe_code)]

use libloading::Library;
use rdma_status::OsError;

/// Opens a library. The caller must keep the library open while the program uses the library's
/// functions.
///
/// # Errors
///
/// Returns `ELIBACC` with the name of the library if it cannot be opened.
pub(crate) fn library(file: &'static str) -> Result<Library, OsError> {
    // SAFETY: the initialisers of libibverbs and librdmacm may run at any time. The caller keeps
    // the library open while its functions are used.
    unsafe { Library::new(file) }.map_err(|error| {
        rdmsg_os::info!(
            Rdma,
            "cannot open the library {file}, so RDMA calls fail: {error}"
        );
        OsError::new(file, libc::ELIBACC)
    })
}

/// Returns the function `name` in its default symbol version, which linked programs also use.
///
/// # Errors
///
/// Returns `ELIBBAD` with the name of the function if the library lacks it.
///
/// # Safety
///
/// `F` is the type of a pointer to the function.
pub(crate) unsafe fn function<F: Copy>(
    library: &Library,
    name: &'static str,
) -> Result<F, OsError> {
    // SAFETY: the caller guarantees that `F` is the type of a pointer to the function.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    found.map(|function| *function).map_err(|error| {
        rdmsg_os::info!(
            Rdma,
            "a library lacks the function {name}, so some or all RDMA calls fail: {error}"
        );
        OsError::new(name, libc::ELIBBAD)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_library_or_function_is_named() {
        assert_eq!(
            library("librdmsg-missing.so.1").err(),
            Some(OsError::new("librdmsg-missing.so.1", libc::ELIBACC))
        );
        let c = library("libc.so.6").unwrap();
        // SAFETY: the C library has no function with this name, so the call returns no pointer.
        let found = unsafe { function::<unsafe extern "C" fn()>(&c, "rdmsg_missing") };
        assert_eq!(
            found.err(),
            Some(OsError::new("rdmsg_missing", libc::ELIBBAD))
        );
    }
}
